# Makes a root of its own and runs a command there: unshare starts this in new namespaces.
# Arguments: bytes of scratch space, user id ("" keeps it), paths to show (read only), "--", command.
set -eu
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
scratch=$1 user=$2
shift 2
mount -t tmpfs -o mode=755,size=1m root /proc
cd /proc
mkdir tmp dev
while [ "$1" != -- ]; do
    mkdir -p ".$(dirname "$1")"
    if [ -L "$1" ]; then
        ln -s "$(readlink "$1")" ".$1"
    elif [ -e "$1" ]; then
        if [ -d "$1" ]; then mkdir -p ".$1"; else : >".$1"; fi
        mount --bind "$1" ".$1"
        case $1 in
            /dev/*) ;;
            *) mount -o remount,bind,ro,nosuid,nodev ".$1" ;;
        esac
    fi
    shift
done
shift
mount -t tmpfs -o "mode=1777,nosuid,nodev,nr_inodes=4096,size=$scratch" scratch tmp
mount -o remount,ro /proc
exec chroot . setpriv --no-new-privs --inh-caps=-all --bounding-set=-all \
    ${user:+--reuid "$user" --regid "$user" --clear-groups} "$@"

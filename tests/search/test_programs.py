"""From text to programs: extraction, assembly, blocks."""

import ast
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsearch.search.fences import fenced
from stepsearch.search.programs import blocks, extract_program, same_program, whole_program

PROMPT = 'from math import pi\n\n\ndef area(r):\n    """The area of a circle."""\n'
FULL = """import os


# adds
@cache
def add(a, b):
    \"\"\"Two lines

    of text.\"\"\"
    total = a
    # now b
    if b:
        total += b

        total += 0
    else:
        pass
    return (
        total
    )


print(add(1, 2))
"""


QUOTING = """def f():
    '''Don't forget:

    ```
    f()
    ```
    '''
    return "#'"
s = \"\"\"
```
"It's" \\"\"\"
```
\"\"\"
"""


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nx = 1\n```\n", "x = 1"),
        ("Sure:\n```python\ndef f():\n    pass\n```\nUse it:\n```\nf()\n```", "def f():\n    pass"),
        ("```bash\nls\n```\n```py\nx = 2\n```", "x = 2"),
        ("\n\n    return 1\n", "    return 1"),
        ("```python\nx = 1", "x = 1"),
        ("<think>```python\nx = 1\n```</think>\n    return 2", "    return 2"),
        ("    return x\n```\nThat is all.", "    return x"),
        ("    return x\n```\n\nExample:\n```python\nf(2)\n```\n", "    return x"),
        ("    return x\n```\n\nExample:\n```\nf(2)\n```\n", "    return x"),
        ("x = 2\nreturn x\n```\nThat is all.", "x = 2\nreturn x"),
        ("def f(x):\n\nbecomes\n```\ndef f(x):\n    return x\n```", "def f(x):\n    return x"),
        (" So:\n```\nx = 1", "x = 1"),
        ("It's:\n```\nnothing\n```python\nx = 1\n```", "x = 1"),
        (f"So:\n```python\n{QUOTING}```\nDone.", QUOTING.rstrip()),
        (QUOTING, QUOTING.rstrip()),
        ('```python\ns = """\n```\n```python\nt = """a"""\n```', 't = """a"""'),
        ("  \n ", None),
        ("x" * 100_001, None),
    ],
)
def test_where_the_program_stands(text: str, program: str | None) -> None:
    assert extract_program(text) == program


@pytest.mark.parametrize(
    "answer",
    [
        "    return pi * r * r",
        "return pi * r * r",
        "square = r * r\n    return pi * square",
        "    return pi * r * r\nprint('and so on')\n",
        "    return circle(r)\n\ndef circle(r):\n    return pi * r * r",
        "def area(r):\n    return pi * r * r",
        "for _ in range(3):\n        pass\n    return pi * r * r",
        "for _ in range(3):\n    pass\nreturn pi * r * r",
    ],
)
@pytest.mark.parametrize("prompt", [PROMPT, "from math import pi\ndef area(r):\n"])
def test_every_way_of_going_on_computes_the_same(prompt: str, answer: str, capsys) -> None:
    names: dict[str, object] = {}
    exec(whole_program(prompt, answer, "area"), names)
    assert names["area"](2) == pytest.approx(12.566370614)  # type: ignore[operator]
    assert capsys.readouterr().out == ""


USAGE = 'def usage(name):\n    """Doc."""\n'
ADD = 'def add(a, b):\n    """Doc."""\n'


@pytest.mark.parametrize(
    "answer",
    [
        '    return f"""usage: {name}\n  -h  help\n"""\n',
        'return f"""usage: {name}\n  -h  help\n"""',
        'text = f"""usage: {name}\n  -h  help\n"""\n    return text',
        'if name:\n        text = f"""usage: {name}\n  -h  help\n"""\n    return text',
    ],
)
def test_strings_of_several_lines_stay_as_they_are(answer: str) -> None:
    names: dict[str, object] = {}
    exec(whole_program(USAGE, answer, "usage"), names)
    assert names["usage"]("x") == "usage: x\n  -h  help\n"  # type: ignore[operator]


@pytest.mark.parametrize(
    "answer",
    [
        "    y = [\na,\nb]\n    return sum(y)\n",
        "y = [\na,\nb]\nreturn sum(y)\n",
        "from __future__ import annotations\n\ndef add(a: int, b: int) -> int:\n    return a + b",
        "# Now\nfrom __future__ import (\n    annotations,\n)\ndef add(a: X, b):\n    return a + b",
        "add = lambda a, b: a + b",
        "add = (\n    lambda a, b: a + b\n)",
        "add: object = lambda a, b: a + b",
        "import operator\nadd = operator.add",
        "from operator import add",
        "from operator import sub, add  # both",
        "class A:\n    def run(self, a, b):\n        return a + b\n\nadd = A().run\n",
        "class add:\n    def __new__(cls, a, b):\n        return a + b",
        "add = a + b\nreturn add",
        "    return a + b\n\nadd = add(1, 2)",
        "add = a + b\n    return add",
        "    add = a + b\n    return add",
        "if a == b:\n    add = 2 * a\nelse:\n    add = a + b\nreturn add",
    ],
)
def test_every_way_of_defining_computes_the_same(answer: str) -> None:
    names: dict[str, object] = {}
    exec(whole_program(ADD, answer, "add"), names)
    assert names["add"](1, 2) == 3  # type: ignore[operator]


def test_blocks_of_a_whole_function() -> None:
    assert blocks(FULL) == (
        "import os\n\n\n",
        FULL[FULL.index("# adds") : FULL.index("    total = a")],
        "    total = a\n",
        FULL[FULL.index("    # now b") : FULL.index("    return (")],
        "    return (\n        total\n    )\n\n\n",
        "print(add(1, 2))\n",
    )


def test_blocks_of_a_completion_and_of_a_fence() -> None:
    body = "    x = 1\n    for i in y:\n        x += i\n    return x\n"
    assert blocks(body) == (
        "    x = 1\n",
        "    for i in y:\n        x += i\n",
        "    return x\n",
    )
    assert blocks(f"So:\n```python\n{body}```\nDone.") == (
        "So:\n```python\n    x = 1\n",
        "    for i in y:\n        x += i\n",
        "    return x\n",
        "```\nDone.",
    )


def test_blocks_end_with_the_program_that_a_fence_ends() -> None:
    text = "    x = 1\n    return x\n```\nThat is all."
    assert blocks(text) == ("    x = 1\n", "    return x\n", "```\nThat is all.")


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_line_feeds_end_the_lines_of_blocks(mark: str) -> None:
    quoting = f"s = 'a{mark}b'\n"
    assert blocks(f"{quoting}x = 1\ny = 2\n") == (quoting, "x = 1\n", "y = 2\n")


def test_a_form_feed_goes_with_the_definition_behind_it() -> None:
    text = "x = 1\n\x0cdef f():\n    return 2\n\x0c\ny = 3\n"
    assert blocks(text) == ("x = 1\n", "\x0cdef f():\n", "    return 2\n\x0c\n", "y = 3\n")


@pytest.mark.parametrize("line", ['"""\n', "```\n", '\\"', "'", " \n", "'\""])
def test_fences_are_soon_found_in_long_texts(line: str) -> None:
    text = "```python\n" + line * (100_000 // len(line))
    started = time.monotonic()
    assert fenced(text)
    assert time.monotonic() - started < 5


@given(st.text(alphabet=st.sampled_from('ab=():#"\x0c\u2028\n    \\`é\r')) | st.text())
def test_blocks_join_to_the_text(text: str) -> None:
    found = blocks(text)
    assert "".join(found) == text
    assert all(found)


def test_what_makes_programs_the_same() -> None:
    assert same_program("x = 1 # one\n\ny=2", "x=1\ny = 2\n")
    assert not same_program("x = 1", "x = 2")
    assert not same_program("if a:\n    b\n    c", "if a:\n    b\nc")


def test_blocks_of_our_own_source_begin_statements() -> None:
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    tree = ast.parse(text)
    starts, line = set(), 1
    for block in blocks(text):
        starts.add(line)
        line += block.count("\n")
    for node in tree.body[1:]:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        assert first in starts

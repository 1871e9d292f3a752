"""The rule `code` and honest programs: the ways in which data sets write tests, right and wrong answers to each."""

from __future__ import annotations

import pytest

from qserve.reward.rules import make_rule, sandbox

# Program, tests that it passes, and tests that it does not pass (empty: none).
STYLES: dict[str, tuple[str, str, str]] = {
    "MBPP asserts": (
        "def add(a, b):\n    return a + b",
        "assert add(1, 2) == 3\nassert add(-1, 1) == 0",
        "assert add(1, 2) == 4",
    ),
    "HumanEval's check": (
        "from typing import List\n\ndef below(n: int, l: List[int]) -> List[int]:\n    return [x for x in l if x < n]",
        "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate(3, [1, 2, 3]) == [1, 2]\n"
        "    assert candidate(0, []) == []\n\ncheck(below)",
        "def check(candidate):\n    assert candidate(3, [1, 2, 3]) == [1, 2, 3]\n\ncheck(below)",
    ),
    "a tolerance": (
        "def third(x):\n    return x / 3",
        "assert abs(third(1) - 0.333333) < 1e-5\nimport math\nassert math.isclose(third(2), 2 / 3)\n"
        "assert round(third(1), 2) == 0.33",
        "assert abs(third(1) - 0.34) < 1e-6",
    ),
    "types": (
        "def f(x):\n    return [x]\ndef g():\n    return True",
        "assert isinstance(f(1), list) and type(f(1)) is list and isinstance(f(1)[0], int) and g() is True",
        "assert isinstance(f(1), tuple)",
    ),
    "every plain value": (
        "def same(x):\n    return x",
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime, collections, math\n"
        "for x in (None, True, 0, -1, 2**70, -2**70, 0.1, -0.0, float('inf'), 1j, '', 'äöü\\ud800', b'\\0', (1,), [[1], {2: (3,)}],\n"
        "          {1, 2}, frozenset({1}), range(3), slice(1, 2), ..., bytearray(b'x'), Decimal('1.10'), Fraction(1, 3),\n"
        "          datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.timedelta(1, 2),\n"
        "          collections.deque([1, 2], 5), collections.Counter('aab'), collections.OrderedDict(a=1),\n"
        "          collections.defaultdict(list, a=[1]), int, ValueError, len, math.sqrt):\n"
        "    assert same(x) == x and type(same(x)) is type(x), x\n"
        "assert math.isnan(same(float('nan')))",
        "assert same(1) == 1.5",
    ),
    "changed in place": (
        "def sort_in_place(a):\n    a.sort()\ndef grow(d, s):\n    d['x'].append(1); d['y'] = s; s.add(3); return d",
        "a = [3, 1, 2]\nassert sort_in_place(a) is None and a == [1, 2, 3]\n"
        "d, s = {'x': []}, {1}\ninner = d['x']\nassert grow(d, s) is d\n"
        "assert d == {'x': [1], 'y': {1, 3}} and inner == [1] and d['y'] is s",
        "a = [3, 1]\nsort_in_place(a)\nassert a == [3, 1]",
    ),
    "a matrix in place": (
        "def zero(m):\n    for row in m:\n        row[0] = 0",
        "row = [1, 2]\nm = [row, row, [3, 4]]\nzero(m)\nassert m == [[0, 2], [0, 2], [0, 4]] and m[0] is m[1]",
        "m = [[1]]\nzero(m)\nassert m == [[1]]",
    ),
    "functions as arguments": (
        "def apply(f, xs):\n    return [f(x) for x in xs]\ndef best(xs, key):\n    return max(xs, key=key)",
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3] and best(['a', 'bbb'], key=len) == 'bbb'\n"
        "def f(x): return apply(str, [x])\nassert apply(f, [1]) == [['1']]",
        "assert apply(lambda x: x + 1, [1]) == [1]",
    ),
    "decorators and closures": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def g(*a, **k):\n        return f(*a, **k) * 2\n    return g\n"
        "def adder(n):\n    return lambda x: x + n",
        "@twice\ndef three(): return 3\nassert three() == 6 and three.__name__ == 'three' and adder(2)(3) == 5",
        "assert adder(2)(3) == 6",
    ),
    "generators": (
        "def count(n):\n    for i in range(n): yield i\ndef ever():\n    i = 0\n    while True:\n        yield i\n        i += 1",
        "import itertools\nassert list(count(3)) == [0, 1, 2] and sum(count(4)) == 6 and next(count(1)) == 0\n"
        "assert list(itertools.islice(ever(), 3)) == [0, 1, 2] and 2 in count(3)\n"
        "g = count(1)\nnext(g)\ntry:\n    next(g)\n    assert False\nexcept StopIteration: pass",
        "assert list(count(2)) == [0, 1, 2]",
    ),
    "a generator as an argument": (
        "def total(xs):\n    return sum(xs)\ndef first(xs):\n    return next(iter(xs))",
        "assert total(x * x for x in range(4)) == 14 and first(map(str, [7])) == '7' and total(iter([1, 2])) == 3",
        "assert total(x for x in [1]) == 2",
    ),
    "exceptions": (
        "def root(x):\n    if x < 0: raise ValueError('negative')\n    return x ** 0.5",
        "try:\n    root(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'\n"
        "try: root('a')\nexcept TypeError: pass\nelse: assert False",
        "try:\n    root(-1)\nexcept KeyError: pass",
    ),
    "exceptions of its own": (
        "class BankError(Exception): pass\nclass Broke(BankError, ValueError):\n    def __init__(self, owed):\n"
        "        super().__init__(f'owes {owed}')\n        self.owed = owed\ndef pay(x):\n    raise Broke(x)",
        "for kind in (Broke, BankError, ValueError):\n    try: pay(3)\n    except kind as error:\n"
        "        assert str(error) == 'owes 3'\n    else: assert False\n"
        "try: pay(4)\nexcept Broke as error: assert error.owed == 4",
        "try: pay(3)\nexcept KeyError: pass",
    ),
    "unittest": (
        "def div(a, b):\n    return a / b",
        "import unittest\nclass Test(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(div(4, 2), 2)\n"
        "        self.assertAlmostEqual(div(1, 3), 0.3333333333)\n        with self.assertRaises(ZeroDivisionError): div(1, 0)\n"
        "if __name__ == '__main__':\n    unittest.main()",
        "import unittest\nclass Test(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(div(4, 2), 3)\nunittest.main()",
    ),
    "a class": (
        "class Stack:\n    size = 3\n    def __init__(self, items=()): self.items = list(items)\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
        "    def __iter__(self): return iter(self.items)\n    @property\n    def top(self): return self.items[-1]\n"
        "    @staticmethod\n    def of(x): return Stack([x])",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2 and s.top == [2] and list(s) == [1, [2]] and s.pop() == [2]\n"
        "assert isinstance(s, Stack) and not Stack() and s and Stack.size == 3 and Stack.of(5).pop() == 5 and s.items == [1]\n"
        "assert hasattr(s, 'push') and not hasattr(s, 'peek') and s.__class__.__name__ == 'Stack'\n"
        "try: Stack().pop()\nexcept IndexError: pass\nelse: assert False",
        "s = Stack([1])\nassert s.pop() == 2",
    ),
    "operators of a class": (
        "class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k): return V(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
        "    def __eq__(self, o): return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n    def __hash__(self): return hash((self.x, self.y))\n"
        "    def __lt__(self, o): return self.x < o.x\n    def __repr__(self): return f'V({self.x}, {self.y})'\n"
        "    def __matmul__(self, o): return self.x * o.x + self.y * o.y\n    def __getitem__(self, i): return (self.x, self.y)[i]\n    def __neg__(self): return V(-self.x, -self.y)",
        "assert V(1, 2) + V(1, 1) == V(2, 3) and V(1, 2) != V(1, 3) and 2 * V(1, 2) == V(1, 2) * 2 == V(2, 4)\n"
        "assert repr(V(1, 2)) == 'V(1, 2)' and V(1, 2) @ V(3, 4) == 11 and V(1, 2)[1] == 2 and str(-V(1, 1)) == 'V(-1, -1)'\n"
        "assert sorted([V(3, 0), V(1, 0)]) == [V(1, 0), V(3, 0)] and len({V(1, 2), V(1, 2)}) == 1 and [V(1, 2)] == [V(1, 2)]",
        "assert V(1, 2) == V(1, 3)",
    ),
    "a linked list": (
        "class Node:\n    def __init__(self, val, next=None): self.val, self.next = val, next\n"
        "def reverse(n):\n    last = None\n    while n: n.next, last, n = last, n, n.next\n    return last",
        "a = Node(1, Node(2, Node(3)))\nb = reverse(a)\nvalues = []\nwhile b is not None:\n    values.append(b.val)\n    b = b.next\n"
        "assert values == [3, 2, 1] and a.next is None and reverse(None) is None",
        "assert reverse(Node(1)).val == 2",
    ),
    "a class of the tests": (
        "def depth(t):\n    return 0 if t is None else 1 + max(depth(t.left), depth(t.right))\ndef mark(t):\n    t.seen = True",
        "class Tree:\n    def __init__(self, left=None, right=None): self.left, self.right, self.seen = left, right, False\n"
        "t = Tree(Tree(), Tree(Tree()))\nassert depth(t) == 3\nmark(t)\nassert t.seen is True",
        "class Tree: left = right = None\nassert depth(Tree()) == 2",
    ),
    "namedtuple, dataclass, enum": (
        "from collections import namedtuple\nfrom dataclasses import dataclass\nfrom enum import Enum, IntEnum\n"
        "P = namedtuple('P', 'x y')\n@dataclass\nclass D:\n    a: int\n    b: str = 'b'\nclass C(Enum):\n    RED = 1\nclass I(IntEnum):\n    ONE = 1\n"
        "def p(): return P(1, 2)\ndef d(): return D(1)\ndef c(): return C.RED",
        "assert p() == (1, 2) and p().y == 2 and isinstance(p(), tuple) and p() == P(1, 2) and tuple(p()) == (1, 2)\n"
        "assert d() == D(1, 'b') and d().a == 1 and c() is C.RED and c().value == 1 and C['RED'] == C.RED and I.ONE == 1\n"
        "x, y = p()\nassert (x, y) == (1, 2)",
        "assert p() == (1, 3)",
    ),
    "a subclass of a builtin": (
        "class L(list):\n    def last(self): return self[-1]\nclass F(float): pass\ndef f(): return F(2.5)",
        "x = L([1, 2])\nx.append(3)\nassert x == [1, 2, 3] and x.last() == 3 and 2 in x and len(x) == 3 and isinstance(x, list)\n"
        "assert abs(f() - 2.5) < 1e-9 and f() + 1 == 3.5 and 1 + f() == 3.5 and f() < 3 and max(f(), 1) == 2.5",
        "assert L([1]) == [2]",
    ),
    "printed": (
        "def greet(name):\n    print('Hello', name)\n    print('!')",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    greet('you')\n"
        "assert out.getvalue() == 'Hello you\\n!\\n'",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    greet('you')\nassert out.getvalue() == ''",
    ),
    "read": (
        "def solve():\n    n = int(input())\n    print(sum(map(int, input().split())) + n)",
        "import io, sys, contextlib\nfrom unittest import mock\nsys.stdin = io.StringIO('1\\n2 3\\n')\nout = io.StringIO()\n"
        "with contextlib.redirect_stdout(out): solve()\nassert out.getvalue().strip() == '6'\n"
        "with mock.patch('builtins.input', side_effect=['5', '1 1']), contextlib.redirect_stdout(out): solve()\nassert out.getvalue().split() == ['6', '7']",
        "import io, sys, contextlib\nsys.stdin = io.StringIO('1\\n2 3\\n')\nout = io.StringIO()\n"
        "with contextlib.redirect_stdout(out): solve()\nassert out.getvalue().strip() == '5'",
    ),
    "async": (
        "import asyncio\nasync def double(x):\n    await asyncio.sleep(0)\n    return 2 * x",
        "import asyncio\nassert asyncio.run(double(2)) == 4\nasync def both(): return await asyncio.gather(double(1), double(2))\n"
        "assert asyncio.run(both()) == [2, 4]",
        "import asyncio\nassert asyncio.run(double(2)) == 5",
    ),
    "threads": (
        "import threading\nclass Counter:\n    def __init__(self): self.n, self.lock = 0, threading.Lock()\n"
        "    def add(self):\n        with self.lock: self.n += 1\n"
        "def race(f):\n    ts = [threading.Thread(target=f) for _ in range(5)]\n    [t.start() for t in ts]\n    [t.join() for t in ts]",
        "import threading\nc = Counter()\nts = [threading.Thread(target=c.add) for _ in range(5)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert c.n == 5\n"
        "seen = []\nrace(lambda: seen.append(1))\nassert len(seen) == 5",
        "c = Counter()\nc.add()\nassert c.n == 2",
    ),
    "a name of a builtin": (
        "def sum(a, b):\n    return a * b",
        "assert sum(2, 3) == 6",
        "assert sum(2, 3) == 5",
    ),
    "a builtin's name beside": (
        "def abs(x):\n    return 0\ndef f(x):\n    return x",
        "assert abs(-3) == 3 and f(1) == 1",
        "assert abs(f(1) - 2) < 1e-6",
    ),
    "what the program imports": (
        "import math\nfrom collections import Counter\nfrom operator import add\nPI = 3\nTABLE = {'a': [1]}\n"
        "def area(r):\n    return math.pi * r * r",
        "assert math.isclose(area(1), math.pi) and Counter('aa') == {'a': 2} and add(1, 2) == 3 and PI == 3 and TABLE['a'] == [1]",
        "assert PI == 4",
    ),
    "helpers and loops": (
        "def f(n):\n    return [i * i for i in range(n)]",
        "from typing import *\ndef expected(n: int) -> List[int]:\n    return [i ** 2 for i in range(n)]\n"
        "for n in range(20):\n    assert f(n) == expected(n), f'f({n})'\ncases = [(f(1), [0]), (f(2), [0, 1])]\nassert all(a == b for a, b in cases)",
        "for n, answer in ((1, [0]), (2, [0, 2])):\n    assert f(n) == answer",
    ),
    "much data": (
        "def double(xs):\n    return [2 * x for x in xs]",
        "xs = list(range(100_000))\nassert double(xs) == [2 * x for x in xs]",
        "assert double([1]) == [3]",
    ),
    "deep data": (
        "def nest(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x\ndef fact(n):\n    return 1 if n < 2 else n * fact(n - 1)",
        "x, d = nest(100), 0\nwhile x: x, d = x[0], d + 1\nassert d == 100\nimport math\nassert fact(300) == math.factorial(300)",
        "assert fact(5) == 121",
    ),
    "a cache and a context": (
        "import functools, contextlib\n@functools.lru_cache(None)\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "@contextlib.contextmanager\ndef tag(out):\n    out.append('<')\n    yield 'in'\n    out.append('>')\n"
        "class Trie:\n    def __init__(self): self.words = set()\n    def insert(self, w): self.words.add(w)\n    def __contains__(self, w): return w in self.words",
        "assert fib(80) == 23416728348467685 and fib.cache_info().currsize == 81\nout = []\nwith tag(out) as word: assert word == 'in'\n"
        "t = Trie()\nt.insert('ab')\nassert 'ab' in t and 'a' not in t",
        "assert fib(10) == 54",
    ),
    "a main block": (
        "def f(): return 1\nif __name__ == '__main__':\n    print(f())",
        "assert f() == 1",
        "assert f() == 2",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def code() -> object:
    if why := sandbox._why_not():
        pytest.skip(why)
    return make_rule("code", {"timeout_s": 4}, "here").check()


@pytest.mark.parametrize("style", STYLES)
def test_an_honest_program_gets_what_it_earns(style: str, code) -> None:
    program, passed, failed = STYLES[style]
    assert code(program, passed) == 1, "right"
    assert code(program, failed) == 0, "wrong"

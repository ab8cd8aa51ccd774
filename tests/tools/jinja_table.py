#!/usr/bin/env python3
"""Writes tests/fixtures/chat/jinja_table.json.gz: what Python's jinja2 makes of its tests,
filters, methods and operators on values of all kinds, in the environment of Hugging
Face's transformers.

Each entry is a template and its results: one for each value of `x`, or for each pair of
`x` and `y`, or one alone. A result is the text, null for an error, or false where the
text has an address in memory, so that no other program can write it.

Needs `pip install jinja2`.
"""

import gzip
import json

from render_reference import FOLDER, environment

VALUES = [
    "none", "missing", "true", "false", "0", "1", "-7", "12", "2.5", "-0.5", "1e16", "1e-7",
    "''", "'a'", "'Hello wörld'", "'12'", "'-3.5'", "'%s!'", "\"it's\"", "'a\\nb\\n'", "' x  y '",
    "[]", "[1, 2, 3]", "['b', 'A', 'c']", "[none, 1.0, 'a\\'b\"', true]", "(1, 'x')", "{}",
    "{'a': 1, 'B': [2]}", "[{'k': 'v', 'n': 2}, {'k': 'u', 'n': 1}]", "namespace(a=1)", "range(3)",
    "{'a': 1}.items()",
]

# Pairs are of these alone.
PAIRED = [
    "none", "missing", "true", "0", "3", "-7", "2.5", "-0.5", "1e16", "''", "'a'", "'abc'", "'%s-%s'",
    "'%d'", "[]", "[1, 'a']", "['a', 'b']", "(1, 2)", "{}", "{'a': 1}", "namespace(a=1)", "range(3)",
]

UNARY = """
{{ x }}
{{ [x] }}
{{ {'k': x} }}
{{ (x,) }}
{{ x ~ '' }}{{ '' ~ x ~ 1 }}
{{ '%s' % x }}
{{ '%r' % [x] }}
{{ '%d' % x }}
{{ '%5.1f|%-6s|' % (x, x) }}
{{ '%x' % x }}
{{ '{}'.format(x) }}
{{ '{!r:>12}'.format(x) }}
{{ '{:5}'.format(x) }}
{{ '{:.2f}'.format(x) }}
{{ '{:,}'.format(x) }}
{{ not x }}
{{ -x }}
{{ +x }}
{{ x and 1 }}|{{ x or 1 }}
{{ 1 if x else 2 }}
{{ 1 if x }}
{% if x %}a{% elif x is none %}b{% else %}c{% endif %}
{% for i in x %}{{ i }},{% else %}none{% endfor %}
{% for i in x %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(i) }}{{ loop.cycle('p', 'q') }};{% endfor %}
{% for a, b in x %}{{ a }}={{ b }};{% endfor %}
{% set a, b = x %}{{ a }}{{ b }}
{% set ns = namespace(x=x) %}{{ ns.x }}{% set ns.y = x %}{{ ns.y }}{{ ns }}
{{ x.a }}
{{ x['a'] }}
{{ x[0] }}
{{ x[-1] }}
{{ x[7] }}
{{ x.items }}
{{ x[none] }}
{{ x[1:] }}
{{ x[:-1] }}
{{ x[::-1] }}
{{ x[::2] }}
{{ x[-2:5:1] }}
{{ x.a is defined }}
{{ x.a.b is defined }}
{{ x() }}
{{ x == x }}{{ x != none }}
{{ x is sameas none }}{{ x is sameas true }}
{{ x is in [none, 1, 'a'] }}
{{ x is divisibleby 3 }}
{{ x is divisibleby(0) }}
{{ range(x) }}
{{ range(x) | list }}
{{ dict(x) }}
{{ namespace(x) }}
{{ x | attr('a') }}
{{ x | batch(2) | list }}
{{ x | batch(2, 'f') | list }}
{{ x | slice(2) | list }}
{{ x | slice(2, 'f') | list }}
{{ x | center(20) }}|
{{ x | default('d') }}|{{ x | default('d', true) }}|{{ x | d }}
{{ x | dictsort }}
{{ x | dictsort(true, 'value', reverse=true) }}
{{ x | dictsort(by='value') }}
{{ x | e }}
{{ x | forceescape }}
{{ x | safe }}
{{ (x | safe) is escaped }}
{{ x | filesizeformat }}
{{ x | first }}
{{ x | last }}
{{ x | float }}
{{ x | float(9.5) }}
{{ x | format(1) }}
{{ x | format('a', 2) }}
{{ x | groupby('k') }}
{{ x | groupby('n', default=0) }}
{{ x | indent }}|
{{ x | indent(2, true, true) }}|
{{ x | indent('> ', first=true) }}|
{{ x | int }}
{{ x | int(7) }}
{{ x | int(base=16) }}
{{ x | items | list }}
{{ x | join }}
{{ x | join(', ') }}
{{ x | join('-', attribute='k') }}
{{ x | join(1) }}
{{ x | length }}
{{ x | list }}
{{ x | map('upper') | list }}
{{ x | map(attribute='k') | list }}
{{ x | map(attribute='z', default='d') | list }}
{{ x | map('default', 'd') | list }}
{{ x | max }}
{{ x | min }}
{{ x | max(attribute='n') }}
{{ x | reject('none') | list }}
{{ x | rejectattr('k', 'equalto', 'v') | list }}
{{ x | replace('a', 'b') }}
{{ x | replace('l', 'L', 1) }}
{{ x | replace(1, 2) }}
{{ x | reverse | list }}
{{ x | round }}
{{ x | round(1) }}
{{ x | round(1, 'ceil') }}
{{ x | round(0, 'floor') }}
{{ x | select | list }}
{{ x | select('string') | list }}
{{ x | select('gt', 1) | list }}
{{ x | selectattr('k') | list }}
{{ x | selectattr('n', '>', 1) | list }}
{{ x | selectattr('k', 'in', ['v']) | map(attribute='n') | first }}
{{ x | sort }}
{{ x | sort(reverse=true) }}
{{ x | sort(case_sensitive=true) }}
{{ x | sort(attribute='n') }}
{{ x | sort(attribute='k,n') }}
{{ x | string }}
{{ x | sum }}
{{ x | sum(attribute='n') }}
{{ x | sum(start=10) }}
{{ x | title }}
{{ x | tojson }}
{{ x | tojson(indent=2) }}
{{ x | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}
{{ x | trim }}|
{{ x | trim('a1') }}|
{{ x | truncate(5) }}
{{ x | truncate(6, true, '..', 0) }}
{{ x | unique | list }}
{{ x | unique(attribute='k') | list }}
{{ x | urlencode }}
{{ x | wordcount }}
{{ x | abs }}
{{ x | capitalize }}|{{ x | lower }}|{{ x | upper }}
{{ x | reverse }}
{{ x.get('a') }}{{ x.get('z', 'd') }}{{ x.get('z') }}
{{ x.items() }}
{{ x.keys() | list }}{{ x.values() | list }}
{{ x.keys() }}{{ x.values() }}
{{ x.copy() }}
{{ x.pop() }}
{{ x.append(1) }}
{{ x.update({}) }}
{{ x.count(1) }}
{{ x.index(1) }}
{{ x.index('b') }}
{{ x.count('l') }}
{{ x.__class__ }}
{{ x.real }}{{ x.imag }}
{{ x.is_integer() }}
{{ x.bit_length() }}
{{ x.start }}
{{ x.capitalize() }}|{{ x.casefold() }}|{{ x.lower() }}|{{ x.swapcase() }}|{{ x.title() }}|{{ x.upper() }}
{{ x.center(13) }}|{{ x.center(8, '*') }}|{{ x.ljust(6) }}|{{ x.rjust(6, '.') }}|{{ x.zfill(7) }}
{{ x.endswith('a') }}{{ x.startswith(('a', 'H')) }}{{ x.startswith('l', 2) }}{{ x.endswith('', 1, 3) }}
{{ x.expandtabs() }}{{ x.expandtabs(tabsize=2) }}
{{ x.find('l') }}{{ x.find('l', -3) }}{{ x.rfind('l') }}{{ x.find('') }}
{{ x.isalnum() }}{{ x.isalpha() }}{{ x.isascii() }}{{ x.isdecimal() }}{{ x.isdigit() }}{{ x.isidentifier() }}{{ x.islower() }}{{ x.isnumeric() }}{{ x.isprintable() }}{{ x.isspace() }}{{ x.istitle() }}{{ x.isupper() }}
{{ x.join(['a', 'b']) }}{{ x.join('xy') }}
{{ x.join([1]) }}
{{ x.strip() }}|{{ x.lstrip() }}|{{ x.rstrip() }}|{{ x.strip('a ') }}|{{ x.lstrip('H') }}
{{ x.partition('l') }}{{ x.rpartition('l') }}
{{ x.removeprefix('a') }}{{ x.removesuffix('b\\n') }}
{{ x.replace('l', 'LL') }}{{ x.replace('', '-') }}{{ x.replace('l', '', 1) }}
{{ x.split() }}{{ x.split(' ') }}{{ x.split(none, 1) }}{{ x.split('l', 1) }}{{ x.split(sep='l', maxsplit=-1) }}
{{ x.rsplit() }}{{ x.rsplit(' ', 1) }}{{ x.rsplit(none, 1) }}
{{ x.split('') }}
{{ x.splitlines() }}{{ x.splitlines(true) }}
{{ x.replace(old='a', new='b') }}
{{ x.format(1, a=2) }}
{{ x is string and x | length > 0 }}
{% macro m(a, b=2) %}[{{ a }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(x) }}{{ m(x, x, x) }}{{ m(b=x, c=x) }}
{% macro m() %}{{ caller(x) }}{% endmacro %}{% call(v) m() %}<{{ v }}>{% endcall %}
{% set y %}<{{ x }}>{% endset %}{{ y }}{% set y | upper %}{{ x }}{% endset %}{{ y }}
{% filter upper | replace('A', 'b') %}{{ x }}a{% endfilter %}
{% with y = x, z = 1 %}{{ y }}{{ z }}{% endwith %}{{ z }}
{% for i in [1, 2] if x %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}
{% for i in x recursive %}{{ i }}{{ loop.depth }}{% if i is mapping %}({{ loop(i) }}){% endif %}{% endfor %}
""".strip().split("\n")

BINARY = [
    "{{ x %s y }}" % operator
    for operator in "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in"]
] + """
{{ x is eq y }}{{ x is ne y }}
{{ x is lt y }}
{{ x is in y }}
{{ x is divisibleby y }}
{{ x[y] }}
{{ x[y:] }}
{{ x.get(y, 'd') }}
{{ x | default(y) }}
{{ x | join(y) }}
{{ x | replace(y, 'z') }}
{{ x | truncate(y) }}
{{ x | indent(y) }}
{{ x | center(y) }}
{{ x | round(y) }}
{{ x | sum(start=y) }}
{{ x | tojson(indent=y) }}
{{ x | batch(y) | list }}
{{ x.split(y) }}
{{ x.count(y) }}
{{ x.startswith(y) }}
{{ x.replace('a', y) }}
{{ x.strip(y) }}
{{ [x, y] | sort }}
{{ [x, y] | unique | list }}
{{ [x, y] | max }}
{{ [x, y] | sum }}
{{ 0 < x <= y }}
{{ x.ljust(y) }}
""".strip().split("\n")

SINGLE = """
{{ 1e-07 }} {{ 1e16 }} {{ 1e15 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ [1e-5, 123456789.125, -0.0, 1e300] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}
{{ 1 + 2 ~ 3 }} {{ 1 ~ 2 + 3 }} {{ 2 * 3 ~ 4 }} {{ 'a' 'b' ~ 'c' }} {{ 1 - 1 - 1 }} {{ 8 / 4 / 2 }}
{{ not 1 == 2 }} {{ not true and false }} {{ true or false and false }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 in [1] == true }} {{ 'a' not in 'b' }}
{{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5 }} {{ 1e3 }} {{ 12.e }}
{{ '\\x41\\u00e9\\n\\t\\\\\\'\\"\\a' | tojson }} {{ '\\101\\q' }} {{ "a\\
b" }}
{{ ["it's", 'say "hi"', 'both \\' "', 'tab\\t', 'nul\\x00', 'é', '\\u200b', '\\u00a0', '\\U0001f600', '\\\\'] }}
{{ -1 | abs }} {{ -1.5 | abs }} {{ (-1) | abs }} {{ - 1 | string }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 42.55 | round(1, 'floor') }} {{ 42 | round(-1) }} {{ 45 | round(-1) }} {{ 2.675 | round(2) }} {{ -2.5 | round(0, 'ceil') }}
{{ '0x1f' | int(base=16) }} {{ ' 12 ' | int }} {{ '1_2' | int }} {{ '1__2' | int }} {{ '12.9' | int }} {{ 'x' | int }} {{ 'inf' | float }} {{ 'nan' | float }} {{ '1e3' | float }} {{ '0b11' | int(0, 0) }} {{ '1e3' | int }}
{{ 'nan' | float == 'nan' | float }} {{ ['inf' | float] | tojson }} {{ 'inf' | float | int }}
{{ '%s and %s' % ('a', 1) }} {{ '%(a)s %(b)05d' % {'a': 1, 'b': -2} }} {{ '%5s|%-5s|%05d|%+d|% d|%%' % ('a', 'b', 3, 4, 5) }}
{{ '%.3f %e %g %g %g %G' % (3.14159, 12345.678, 0.00001234, 123456789.0, 100000.0, 1e-10) }} {{ '%x %X %o %#x %c %c %r %a' % (255, 255, 8, 255, 65, 'z', 'q', 'é') }}
{{ '%*d|%-*d|%.*f' % (5, 1, 5, 2, 2, 3.14159) }} {{ '%.2s' % 'abc' }} {{ '%i' % 3.99 }} {{ '%5.3d' % 7 }} {{ '%s' % none }} {{ '%s' % (none,) }}
{{ '%s' % 'a' % 'b' }}
{{ '%s %s' % 'a' }}
{{ '%d' % 'a' }}
{{ '%y' % 1 }}
{{ '%' % 1 }}
{{ 'abc' % [] }} {{ 'abc' % {} }} {{ 'abc' % {'a': 1} }}
{{ 'abc' % 1 }}
{{ '{} {}'.format('a', 1) }} {{ '{1} {0}'.format('a', 'b') }} {{ '{a} {{}}'.format(a=1) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+}|{:,}|{:x}|{:#b}|{:%}|{:.3}|{:e}'.format('a', 'b', 'c', 'd', 42, 5, 1234567, 255, 5, 0.25, 'abcdef', 12345.678) }}
{{ '{0} {}'.format(1, 2) }}
{{ '{'.format(1) }}
{{ '{2}'.format(1) }}
{{ '{:_}|{:10,.2f}|{:<8}|{:>8}|{: }'.format(1234567, 1234.5, true, 1.5, 3) }} {{ '{:d}'.format(true) }} {{ '{!s:>4}{!r}'.format(1, 'a') }}
{{ 'aé😀b'[1] }} {{ 'aé😀b'[::-1] }} {{ 'aé😀b' | length }} {{ 'aé😀b'.find('b') }} {{ 'aé😀b'.center(9, '·') }}
{{ 'ß'.upper() }} {{ 'ÉCOLE'.lower() }} {{ 'ǆ'.upper() }} {{ 'ΑΣ'.lower() }} {{ "they're o'neil-smith x2y".title() }} {{ "they're o'neil-smith (x2y [z" | title }} {{ 'İ'.lower() | length }} {{ 'ß'.title() }} {{ 'ﬁx'.capitalize() }}
{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ '一'.isnumeric() }}{{ '一'.isalpha() }}{{ 'é'.isalnum() }}{{ '\\u00a0'.isspace() }}{{ '\\x1c'.isspace() }}{{ 'ª'.islower() }}{{ '\\u0301'.isalpha() }}{{ 'a_1'.isidentifier() }}
{{ 'a\\r\\nb\\x0bc\\u2028d\\re\\x1cf'.splitlines() }} {{ '\\x1c a \\u3000'.strip() }} {{ 'a\\u00a0b c'.split() }} {{ ''.splitlines() }} {{ '\\n'.splitlines() }} {{ '' | indent }}|{{ '\\n\\n' | indent(2, blank=true) }}|
{{ 'one two-three_four 5' | wordcount }} {{ 'naïve café' | wordcount }} {{ '' | wordcount }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '...', 0) }} {{ 'foobarbazqux' | truncate(3, leeway=0) }}
{{ 'x' | truncate(2) }}
{{ 1 | filesizeformat }} {{ 999 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 1536 | filesizeformat(true) }} {{ 13000000 | filesizeformat }} {{ 0.5 | filesizeformat }} {{ 1e30 | filesizeformat }}
{{ 'a b/c?d=é&' | urlencode }} {{ {'a b': 'c/d', 'e': 1} | urlencode }} {{ [('k', 'v w')] | urlencode }}
{{ '<a href="x">\\'&</a>' | e }} {{ '<' | e | e }} {{ '<' | e | forceescape }} {{ ['<' | e] }} {{ ('<' | e) | length }} {{ '<' | safe }}
{{ ('<' | safe) + '<' }}
{{ ('<' | safe) ~ '<' }}
{{ range(5)[1:3] }} {{ range(0, 10, 3) | list }} {{ range(10)[::3] }} {{ range(5, 0, -2) | list }} {{ range(3) == range(0, 3) }} {{ 2 in range(3) }} {{ range(3)[-1] }} {{ range(10).index(3) }} {{ range(2) | length }}
{{ range(100000) | length }}
{{ range(100001) }}
{{ range(1, 2, 0) }}
{{ range() }}
{{ range('3') }}
{{ [1, 2] + [3] }} {{ (1,) + (2,) }} {{ [1, 2] * 2 }} {{ 2 * 'ab' }} {{ 'ab' * -1 }} {{ [1] == [1.0] }} {{ (1, 2) == [1, 2] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ 1 == true }} {{ '1' == 1 }} {{ none == false }}
{{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }} {{ (1,) < (1, 2) }} {{ 'Z' < 'a' }} {{ 1 < 1.5 }} {{ true < 2 }}
{{ [1] < (1, 2) }}
{{ {'a': 1}['a'] }} {{ {1: 'int', 'x': 2}[1] }} {{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }} {{ {'items': 5}['items'] }} {{ {'a': 1}.a }}
{{ {[1]: 2} }}
{{ {'items': 5}.items }}
{{ {'get': 1}.get('get') }} {{ {'a': 1}.b }}|{{ {'a': 1}['b'] }}|{{ [1][5] }}|{{ 'a'.b }}|{{ none.a }}|{{ 1.a is defined }}
{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 2, 'a': 2} | dictsort(by='value') }} {{ {2: 1, 1: 2} | dictsort }}
{{ {'a': 1, 2: 1} | dictsort }}
{{ ['b', 'A', 'a', 'B'] | sort }} {{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['b', 'A', 'a', 'B'] | unique | list }} {{ ['b', 'A', 'a'] | min }} {{ ['b', 'A', 'a'] | max }} {{ [1, true, 1.0, 2] | unique | list }}
{{ [1, 'a'] | sort }}
{{ [[1], [1]] | unique | list }}
{{ [{'a': {'b': 2}}, {'a': {'b': 1}}] | sort(attribute='a.b') | map(attribute='a.b') | list }} {{ [[1, 'x'], [0, 'y']] | sort(attribute=0) }} {{ [[1, 'x'], [0, 'y']] | map(attribute='1') | list }}
{% for g, items in [{'c': 'x', 'n': 1}, {'c': 'Y', 'n': 2}, {'c': 'X', 'n': 3}] | groupby('c') %}{{ g }}:{{ items | map(attribute='n') | join(',') }};{% endfor %}{% for g in [{'c': 1}] | groupby('c') %}{{ g.grouper }}{{ g.list }}{{ g[0] }}{{ g }}{% endfor %}
{% set g = [1, 2, 3] | select('odd') %}{{ g | list }}{{ g | list }}{{ 1 if g }}{{ g is iterable }}{{ g is sequence }}
{{ [1, 2] | select('odd') | length }}
{{ [1, 2] | map('string') | last }}
{{ ([1, 2] | map('string'))[0] }}|
{{ 2 in ([1, 2, 3] | select) }} {{ [1, 2] | select('odd') | first }} {{ [] | first }}|{{ [] | last }}|{{ [] | min }}|{{ [] | sum }}|{{ none | select | list }}|{{ none | map('upper') | list }}
{{ none | list }}
{{ [1] | map }}
{{ [1] | select('nope') | list }}
{{ [1] | map('nope') | list }}
{{ ['a'] | map('replace', 'a', 'b') | list }} {{ [[3, 1]] | map('sort') | list }} {{ ['a', none] | map('default', 'x', true) | list }} {{ [1, 2, 3, 4] | select('divisibleby', 2) | list }} {{ ['1', 'b'] | map('int', default=9) | list }}
{{ 'x' is filter }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ 'nope' is test }}{{ 3 is odd }}{{ 4 is even }}{{ range is callable }}{{ missing is callable }}{{ none is iterable }}{{ 'a' is iterable }}{{ {} is sequence }}{{ 1.0 is number }}{{ true is number }}{{ true is integer }}{{ 1 is float }}{{ 'a' is lower }}{{ 'A1' is upper }}{{ 1 is boolean }}{{ none is none }}{{ namespace() is mapping }}{{ 5 is between }}
{{ 3 is odd }}{{ 4 is even }}{{ range is callable }}{{ missing is callable }}{{ none is iterable }}{{ 'a' is iterable }}{{ {} is sequence }}{{ 1.0 is number }}{{ true is number }}{{ true is integer }}{{ 'a' is lower }}{{ 'A1' is upper }}{{ 1 is boolean }}{{ namespace() is mapping }}{{ 'x' is filter }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ 5 is not odd }}{{ 5 is ne 6 }}{{ 5 is gt(4) }}{{ 'a' is in 'abc' }}{{ 1 is not none and true }}
{{ 'a' is odd }}
{{ missing.a }}
{{ missing + 1 }}
{{ missing() }}
{{ missing[0] }}
{{ missing == missing2 }}{{ missing ~ 'a' }}{{ missing | length }}{{ missing | list }}{{ 'a' in missing }}{{ [missing] }}{{ missing | default('d') }}{{ missing | upper }}{{ missing | string | length }}{{ missing is sequence }}
{{ missing < 1 }}
{{ missing | int }}
{{ missing | tojson }}
{{ [1, 2] | tojson(separators=('a',)) }}
{{ {'b': 1, 'a': [1.0, none, true, 'é"\\n\\x7f\\u2028'], 3: {}, none: []} | tojson }} {{ [] | tojson(indent=2) }} {{ {'a': [1, {}], 'b': (1, 2)} | tojson(indent=4) }} {{ [1] | tojson(indent=0) }} {{ [1] | tojson(indent='--') }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ 'é😀' | tojson(true) }} {{ 1e16 | tojson }} {{ [1e-7] | tojson }}
{{ {1: 1, 'a': 2} | tojson(sort_keys=true) }}
{{ {(1, 2): 1} | tojson }}
{{ range(3) | tojson }}
{{ [range(3)] | tojson }}
{% set ns = namespace(n=0, l=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% set n = i %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ n }}|{{ ns.missing }}|{{ ns['n'] }}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% with %}{% set x = 5 %}{% endwith %}{{ x }}
{% set x.a = 1 %}
{% set ns = {} %}{% set ns.a = 1 %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}
{% break %}
{% for a in [1, [2, [3]]] recursive %}{{ loop.depth0 }}{% if a is iterable %}{{ loop(a) }}{% else %}{{ a }}{% endif %}{% endfor %}
{% for a in [1] %}{{ loop(a) }}{% endfor %}
{% for a in 1, 2 %}{{ a }}{% endfor %}{% for a in (3,) %}{{ a }}{% endfor %}{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}
{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop }}{% for y in 'ab' %}{{ loop.depth }}{{ loop.index }}{% endfor %}{% endfor %}
{% macro f(a, b='x', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=1) }}{{ f(*[1, 2], **{'c': 4}) }}{{ f }}{{ f.name }}{{ f() }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(z=2) }}
{% macro f() %}{{ g }}{{ varargs }}{{ kwargs }}{% endmacro %}{% set g = 'late' %}{{ f(1, k=2) }}
{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro outer() %}{% macro inner() %}in{% endmacro %}[{{ inner() }}]{% endmacro %}{{ outer() }}{{ inner is defined }}
{{ cycler('a', 'b').next() }}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}{{ j() }}{{ joiner()() }}
{{ dict(a=1, b=2) }}{{ dict({'a': 1}, b=2) }}{{ dict([('a', 1)]) }}{{ namespace(a=1) }}{{ namespace({'a': 1}).a }}
{{ raise_exception('no') }}
{{ raise_exception(none) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %B %b %A %j %y %p %I') }}
{{ strftime_now('%a %A %b %B %d %e %H %I %j %m %M %p %S %U %W %w %y %Y %u %G %V %D %F %T %R %h %n %t %k %l %% %-d %-m %-I %-H %-j') }}
{{ strftime_now('%:M %c') }}
{% generation %}a{{ 1 }}{% endgeneration %}{% block b %}c{% endblock %}{% print 1, 2 %}{{ 1, }}{{ () }}
a {#- c -#} b {# d #}
{%- if true -%} x {%- endif %} y {{- 1 -}} z {%+ if true %}q{% endif +%}
{% raw %}{{ x }} {% if %}{% endraw %}|{%- raw -%} a {%- endraw -%} b
{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1, 2,) }}{{ [] }}{{ {} }}{{ dict(a=1,) }}
{{ 'a' if true }}{{ 'a' if false }}{{ 'a' if false else 'b' if false else 'c' }}{{ ('a' if false) is defined }}
{{ {'a': 1}.items() | list }}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}{{ {'a': 1} | items | list }}{{ {'a': 1}.keys() | first }}{{ {'a': 1}.values() | sum }}{{ 'a' in {'a': 1}.keys() }}{{ {'a': 1} | list }}{{ {'a': 1} | length }}{{ {'a': 1}.items() | length }}
{{ {'a': 1}.setdefault('b', 1) }}
{{ [1].append is defined }}{{ [1].sort is defined }}{{ [1].count is defined }}{{ {}.pop is defined }}{{ 'a'.upper is defined }}{{ 'a'.__len__ is defined }}
{{ [1].__len__() }}
{{ ''.__class__.__mro__ }}
{{ 'a'.join(['x', 'y']) }}{{ ','.join({'a': 1, 'b': 2}) }}{{ 'abc'.join('-+') }}
{{ 'a,b,,c'.split(',') }}{{ 'a,b,,c'.rsplit(',', 1) }}{{ ' a  b '.split(' ') }}{{ 'abc'.partition('b') }}{{ 'abcabc'.rpartition('b') }}{{ 'abc'.partition('z') }}{{ 'abc'.removeprefix('a').removesuffix('c') }}{{ 'aXbX'.replace('X', '-', 1) }}{{ 'abc'.replace('', '.') }}{{ '-5'.zfill(4) }}{{ '+x'.zfill(5) }}{{ 'abcabc'.count('bc') }}{{ 'aaa'.count('aa') }}{{ 'abc'.count('') }}{{ 'abc'.find('c', 0, 2) }}{{ 'abc'.index('c') }}{{ 'a\\tb'.expandtabs(4) }}{{ 'abc'.center(6) }}|{{ 'abcd'.center(7) }}|{{ 'ab'.center(5, '*') }}
{{ 'abc'.index('z') }}
{{ 'a'.center(5, 'xx') }}
{{ 'a'.nope() }}
{{ 'a'.encode() }}
{{ 'abc' | upper | lower | title }}{{ 'a b' | capitalize }}{{ ' a ' | trim }}{{ 'xaxbx' | trim('x') }}{{ 'abc' | reverse }}{{ 'abc' | first }}{{ 'abc' | last }}{{ 'abc' | list }}{{ 'abc' | batch(2) | list }}{{ 'a' | center(4) }}|
{{ 9007199254740993 }} {{ 18446744073709551615 }} {{ 123456789012345678901234567890 }} {{ 2 ** 62 * 2 }} {{ 10 ** 20 }} {{ 5 / 2 }} {{ 4 / 2 }} {{ 1 / 3 }} {{ 2 ** 0.5 }} {{ 10 % 3.5 }} {{ true + true }} {{ -true }} {{ 1.5 * 2 }} {{ 3 * 1.0 }} {{ 1e308 * 10 }} {{ 7.0 // 0.5 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 0 ** -1 }}
{{ 1.0 // 0 }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ [] + () }}
{{ [] - [] }}
{{ 'a' * 1.5 }}
{{ x
{% if %}a{% endif %}
{{ }}
{% for %}{% endfor %}
{% endif %}
{{ 'a }}
{{ a b }}
{{ a | }}
{{ a is }}
{{ 1 is odd is even }}
{% include 'a' %}
{% set true = 1 %}
{{ f(a=1, 2) }}
{{ {1, 2} }}
{{ a ? b }}
{% if 1 %}
{{ 'a' | nope }}
{% if false %}{{ 'a' | nope }}{% endif %}ok{{ ('a' | nope) if false else 'b' }}
{{ 'a' is nope }}
{% if x is defined and x is nope %}{% endif %}ok
""".strip().split("\n")

SINGLE += [
    "{%- for i in [1] %}\n  {{ i }}\n{%- endfor %}\n\nend\n",
    "  {% if true %}\n    a\n  {% endif %}\n b {% if true %}\n c {% endif %}\n",
    "{# c #}\nx\n  {# d #}\n  y\n{#- e -#}\n z",
    "a\r\nb{% if true %}\r\nc{% endif %}\rd\n\n",
    "\t{%- set x = 1 -%}\n\n {{ x }}\n\n  {%+ if x %}y{% endif %}\n",
    "a\n{% raw %}\n b {{\n{% endraw %}\nc",
    "{{ 'a\nb' }}{{ 'x' -}}\n  \n{{- 'y' }}\n{% set y %}\n l1\n{% endset %}[{{ y }}]",
    "{{ '{{' }}{{ '%}' }}{{ {'a': {'b': 1}}['a'] }}{{ {'a': '}}'} }}",
    "{{- 1 -}}{%- if true -%}\n 2 \n{%- endif -%}\n {#- x #}\n3",
]


def result(template, **variables):
    try:
        text = environment().from_string(template).render(**variables)
    except Exception:
        return None
    return False if " at 0x" in text else text


def unary(template):
    return [result("{% set x = " + value + " %}" + template) for value in VALUES]


def binary(template):
    sets = "{%% set x = %s %%}{%% set y = %s %%}"
    return [result(sets % (x, y) + template) for x in PAIRED for y in PAIRED]


def main():
    tests = sorted(environment().tests)
    plain = "boolean callable defined escaped even false filter float integer iterable lower mapping"
    plain += " none number odd sequence string test true undefined upper"
    assert set(plain.split()) <= set(tests)
    one = ["{{ x is %s }}" % name for name in plain.split()] + UNARY
    table = {
        "values": VALUES,
        "paired": PAIRED,
        "unary": {template: unary(template) for template in one},
        "binary": {template: binary(template) for template in BINARY},
        "single": {template: result(template) for template in SINGLE},
    }
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "jinja_table.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()

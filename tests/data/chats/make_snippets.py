"""Writes snippets.json beside this file: small templates and what transformers' environment makes of them.
Usage: make_snippets.py   (needs transformers, jinja2)"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {"s": " Gr\u00fc\u00dfe, W\u00f6rld \n", "n": 7, "f": 2.5, "t": True, "nothing": None, "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": {"x": [1.0, None, "q\"'"]}, "c": "z"},
             "m": [{"role": "user", "n": 2}, {"role": "assistant", "n": 1}, {"role": "user"}]}
SNIPPETS = r"""
{{ s }}|{{ s|trim }}|{{ s.strip() }}|{{ s.lower() }}|{{ s|upper if false else s|title }}|{{ s|length }}|{{ s[1:4] }}|{{ s[-3] }}|{{ s[::-1] }}
{{ 1 + 2 * 3 - 4 // 3 % 2 ** 3 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ 2 ** -1 }} {{ -n|abs }} {{ 1e3 }} {{ 1_000 }} {{ 2 ** 10 }}
{{ 'a' 'b' ~ 1 ~ none ~ true ~ 1.0 ~ l ~ d }} {{ "x" * 3 }} {{ [1] + [2, 3] }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ {'a': 1, 'b': [t, nothing]} }}
{{ 1 < 2 <= 2 > 1 }} {{ 'a' in 'cat' }} {{ 3 in l }} {{ 'b' in d }} {{ 4 not in l }} {{ not 1 == 1 }} {{ 1 == true }} {{ 1 == 1.0 }} {{ [1] == [1] }} {{ 'a' < 'b' }}
{{ missing }}|{{ missing is defined }}|{{ missing|default('x') }}|{{ ''|default('y', true) }}|{{ nothing|default('z') }}|{{ missing or 'or' }}|{{ missing and 'and' }}|{{ d.q is undefined }}
{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %} {% for x in e %}{% else %}none{% endfor %}
{% for x in l if x > 1 %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k, v in d|dictsort %}{{ k }}{% endfor %}{% for c in 'h\u00e9y' %}{{ c }}.{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(5, 0, -2)|list }}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% set ns = namespace(y=0) %}{% for i in l %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }}
{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set c %}text {{ a }}{% endset %}{{ c|length }}{% set d2 | upper %}low{% endset %}{{ d2 }}
{% macro hi(name, greeting='Hello', *args) %}{% endmacro %}
{% macro hi(name, greeting='Hello') %}{{ greeting }} {{ name }}!{{ caller() if caller }}{% endmacro %}{{ hi('a') }}{{ hi('b', greeting='Yo') }}{{ hi(greeting='x') }}{% call hi('c') %}inner{% endcall %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}{% filter upper %}shout {{ n }}{% endfilter %}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ s|tojson }} {{ s|tojson(ensure_ascii=true) }} {{ l|tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=true) }} {{ []|tojson(indent=4) }} {{ '\u0001\x7f/\U0001f600'|tojson(ensure_ascii=true) }}
{{ l|join(', ') }} {{ m|map(attribute='role')|join('-') }} {{ m|selectattr('role', 'equalto', 'user')|list|length }} {{ m|rejectattr('role', 'eq', 'user')|list }} {{ m|selectattr('n')|map(attribute='n')|list }} {{ m|selectattr('n', 'defined')|list|length }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ l|max }}{{ l|min }}{{ l|sum }}{{ l|first }}{{ l|last }} {{ l|reverse|list }} {{ ['b', 'A', 'a']|sort }} {{ ['b', 'A', 'a', 'b']|unique|list }} {{ l|select('odd')|list }} {{ l|reject('gt', 2)|list }} {{ ['a ', 'b']|map('trim')|list }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'k: v'.partition(': ') }} {{ 'x\ny\r\nz'.splitlines() }} {{ 'abc'.find('c') }} {{ 'banana'.count('an') }} {{ 'banana'.replace('a', 'o', 2) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'xxabcx'.strip('x') }} {{ 'xxabc'.lstrip('x') }} {{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ 'o\'neil'.title() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.removeprefix('a') }} {{ '7'.zfill(3) }} {{ 'ab'.upper().lower() }} {{ '-'.join(['a', 'b']) }}
{{ 'one\ntwo\n\nthree'|indent }}|{{ 'one\ntwo'|indent(2, true) }}|{{ 'a\n\nb'|indent(1, blank=true) }}|{{ '3'|int + 1 }} {{ 'x'|int(5) }} {{ '2.7'|int }} {{ '2.5'|float }} {{ 2.5|round }} {{ 3.7|int }} {{ 5|string + '!' }}
{{ s is string }}{{ n is number }}{{ n is integer }}{{ f is float }}{{ t is boolean }}{{ t is true }}{{ nothing is none }}{{ d is mapping }}{{ l is sequence }}{{ l is iterable }}{{ n is odd }}{{ n is divisibleby 7 }}{{ n is not even }}{{ 'a' is in ['a'] }}{{ n is sameas 7 }}{{ 3 is gt(2) }}
{{ d.a.x[0] }} {{ d['a']['x'][-1] }} {{ d.get('q', 'no') }} {{ d.get('q') }} {{ d.keys()|list }} {{ d.values()|list|length }} {{ d.a.x|length }} {{ m[0].role }} {{ m[-1]['role'] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[9] is defined }} {{ d|length }} {{ d|items|list|length }}
{# a comment #}a{#- another -#} b {%- if true %} c {%- endif %} d {{- ' e ' -}} f {% raw %}{{ raw }}{% endraw %}
  {% if n > 5 %}
  big
  {% elif n %}
  small
  {% else %}
  zero
  {% endif %}
 x {%+ if true %} y{% endif +%}

 z
{{ 'it is' if n is defined and n > 3 else 'not' }} {{ ('a' if t) ~ 'b' }} {{ 'no' if not t }}|{{ (1 if t else 2) + 1 }} {{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ -1 }} {{ - 2 ** 2 }} {{ not t or t }}
{{ 1.5e300 * 1e10 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e-5 }} {{ 123456789.0 }} {{ 1e22 }} {{ 10 / 5 }} {{ 3 * 1.0 }}
{{ "tab\there \\ \"q\" 'p' \x41 \u00e9" }} {{ ['tab\t', "it's", 'both \'"', '\u00e9'] }}
{% set x = namespace(a=1, b='c') %}{{ x.a }}{{ x.b }}{% set x.a = 'n' %}{{ x.a }}{{ x.q is defined }} {{ dict(a=1, b=2) }}
{{ '%s' }} {{ 'a%%b' }} {{ "{{ not }}" }} {{ '{%' }} {{ '#}' }}
{% generation %}marked {% set inside = 1 %}{% endgeneration %}{{ inside is defined }}
{{ nothing == none }} {{ none is none }} {{ None }} {{ True and False }} {{ [] or 'empty' }} {{ {} and 1 }} {{ 0 or 0.0 }}
{{ 'qwen3-coder'|safe }}{{ d|tojson|safe if d is mapping or (d is sequence and d is not string) else d|string }}
"""


def main():
    snippets = SNIPPETS.strip("\n")
    start = snippets.index("  {% if n > 5 %}")
    end = snippets.index("{{ 'it is' if n")
    texts = snippets[:start].splitlines() + [snippets[start:end]] + snippets[end:].splitlines()
    result = []
    for text in texts:
        try:
            result.append({"template": text, "text": _compile_jinja_template(text).render(**VARIABLES)})
        except Exception as error:  # what is no template there is none here
            result.append({"template": text, "error": str(error)})
            print("error:", text, error)
    out = pathlib.Path(__file__).parent / "snippets.json"
    out.write_text(json.dumps({"variables": VARIABLES, "snippets": result}, indent=1, ensure_ascii=False) + "\n")


main()

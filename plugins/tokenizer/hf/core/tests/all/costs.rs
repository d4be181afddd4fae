//! Templates whose cost is not their number of instructions: each ends in an error, soon.
use crate::open;
use chassis_hf_core::{Chat, Result};
use std::time::{Duration, Instant};

const HELLO: &str = r#"[{"role": "user", "content": "Hello"}]"#;
const SOON: Duration = Duration::from_secs(8); // a tenth of a second if run alone; minutes if only instructions count

fn render(template: &str) -> Result<String> {
    let chat = Chat { messages_json: HELLO, template_text: template, ..Default::default() };
    open("metaspace").render(&chat).map(|rendered| rendered.text)
}

/// `{begin}` once, and `{step}` in a loop.
fn looped(begin: &str, step: &str) -> String {
    format!("{begin}{{% for i in range(100000) %}}{step}{{% endfor %}}")
}

#[test]
fn work_on_long_values_is_counted_by_bytes() {
    let long = "{% set s = 'ab ' * 400000 %}{% set l = [s, s ~ 'x'] * 100 %}\
                {% set d = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9} %}";
    for step in [
        "{% if d[s] %}{% endif %}",
        "{% if s in d %}{% endif %}",
        "{% if d.get(s) %}{% endif %}",
        "{% set x = {s: 1} %}",
        "{% set x = dict(**{s: 1}) %}",
        "{% if s[-1] %}{% endif %}",
        "{% set x = s[1:] %}",
        "{% set x = d|attr(s) %}",
        "{% if loop.changed(s, i) %}{% endif %}",
        "{% for c in s %}{% break %}{% endfor %}",
        "{% set x = s.split(' ') %}",
        "{% set x = s|split(' ') %}",
        "{% set x = s.splitlines() %}",
        "{% set x = s|list %}",
        "{% set x = s|tojson %}",
        "{% set x = s|length %}",
        "{% set x = s|upper %}",
        "{% set x = l|unique %}",
        "{% set x = l|sort %}",
        "{% set x = l|max %}",
        "{% set x = l|select('eq', s)|list %}",
        "{% set x = l|map('upper')|list %}",
        "{% if s is eq(s ~ '') %}{% endif %}",
        "{% if s is lower %}{% endif %}",
        "{% if l == l %}{% endif %}",
        "{% if 'b' in l %}{% endif %}",
        "{% set x = '{0}{0}{0}'.format(s) %}",
        "{% set x = '' ~ l %}",
        "{% set x = 'ab' * 600000 %}",
        "{% set x = 2 ~ 'ab' * 300000 * 2 %}",
    ] {
        refused_soon(&looped(long, step), "bytes");
    }
    let short = "{% set o = {'a': 'b' * 300000} %}";
    for step in ["{% set x = o|tojson %}", "{% set x %}{{ o.a }}{% endset %}", "{% set x = o.a|trim %}"] {
        refused_soon(&looped(short, step), "bytes");
    }
    refused_soon(&looped("", &format!("{{% set x %}}{}{{% endset %}}", "x".repeat(1 << 20))), "bytes");
    let in_macro = format!("{{% macro f() -%}} {} {{%- endmacro %}}{{% set x = f() %}}", "x".repeat(1 << 20));
    refused_soon(&looped("", &in_macro), "bytes");
}

#[test]
fn many_tags_take_no_time() {
    let chain = format!("{{% if messages == 1 %}}a{}{{% endif %}}", "{% elif messages == 2 %}b".repeat(199));
    for template in [chain.repeat(250), "{#".repeat(1 << 20), "{# #}{% generation %}{% endgeneration %}".repeat(20_000)]
    {
        let start = Instant::now();
        let result = render(&template).map_err(|error| error.message);
        assert!(start.elapsed() < SOON, "{:?} for {}: {result:?}", start.elapsed(), &template[..80]);
    }
}

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

#[test]
fn spans_of_many_messages_take_linear_time() {
    let tokenizer = open("byte_level");
    let seconds_of = |num_pairs: usize| {
        let pair = r#"{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}"#;
        let messages = format!("[{}]", vec![pair; num_pairs].join(","));
        let chat = Chat { messages_json: &messages, template_text: CHATML, spans: true, ..Default::default() };
        let start = Instant::now();
        assert_eq!(tokenizer.render(&chat).unwrap().spans.len(), num_pairs);
        start.elapsed().as_secs_f64()
    };
    seconds_of(1); // compiles the template
    let few = (0..3).map(|_| seconds_of(300)).fold(0.0, f64::max);
    let many = seconds_of(15_000);
    assert!(many < 200.0 * few, "50 times the messages: {few} s and {many} s; 2500 times the comparisons of pieces");
}

#[test]
fn spans_of_very_many_tool_calls_are_refused() {
    let turn = r#"{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                  {"role": "tool", "content": "x"}"#;
    let messages = format!("[{}]", vec![turn; 2000].join(","));
    let template = "{% for m in messages %}{{ m.role }}: {% for call in m.tool_calls or [] %}{{ call.function.name }}\
                    {% endfor %}{{ m.content }}\n{% endfor %}";
    let chat = Chat { messages_json: &messages, template_text: template, spans: true, ..Default::default() };
    let start = Instant::now();
    let error = open("byte_level").render(&chat).unwrap_err();
    assert!(error.message.contains("2000 of 4000 messages have tool calls"), "{error}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn what_the_engine_cannot_do_is_an_error() {
    let template = "{% for m in messages %}{{ loop.cycle() }}{% endfor %}";
    let error = render(template).unwrap_err();
    assert!(error.message.contains("the given template") && error.message.contains("loop.cycle()"), "{error}");
    assert_eq!(render("{% for m in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}").unwrap(), "aba");
}

#[test]
fn white_space_around_loops_stays() {
    for (template, expected) in [
        ("{% for i in [1, 2] -%}\n  x{{ i }}\n{%- endfor %}\ny", "x1x2y"),
        ("{% for i in [1, 2] %}\n x\n{% endfor %}\ny", " x\n x\ny"),
        ("{% for i in [1, 2] +%}\nx{% endfor %}", "\nx\nx"),
        ("  {% for i in [1] %}  x{% else %}y{% endfor %}|", "  x|"),
        ("{% for i in [] %}x{% else %}y{% endfor %}", "y"),
        ("{%- macro f(a, b='x') -%}\n {{ a }}{{ b }} {%- endmacro -%}\n {{ f(1) }}{{ f(2, b=3) }}", "1x23"),
        ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}\n a{% endcall %}", "< a>"),
        ("{% for a in [[1, [2]], [3]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "123"),
        ("{% for k, v in {'a': 1}.items() if v %}{{ k }}{{ v }}{{ loop.length }}{% endfor %}", "a11"),
    ] {
        assert_eq!(render(template).unwrap_or_else(|error| error.message), expected, "{template}");
    }
}

#[test]
fn values_that_are_counted_are_the_same() {
    for (template, expected) in [
        ("{{ {'a': 2}['a'] * 'xy' ~ 'a' * 2 * 1 }}", "xyxyaa"),
        ("{{ 2 * 3 ** 2 }} {{ 12 / 2 * 3 }} {{ 2 ** 3 * 2 // 5 }}", "18 18.0 3"),
        ("{{ messages[0]['role'][1:][::-1] }}{{ messages[-1:][0].role }}{{ 'abc'[messages|length] }}", "resuserb"),
        ("{{ 'role' in messages[0] and 'x' not in messages[0] and messages[0] in messages }}", "True"),
        (
            "{{ [3, 1, 2]|sort|first }}{{ ['b', 'a', 'b']|unique|join }}{{ {'b': 1, 'a': 2}|dictsort }}",
            "1ba[['a', 2], ['b', 1]]",
        ),
        (
            "{{ ['a', 'b']|select('in', ['b'])|list }}{{ [1, 2]|select('gt', 1)|list }}{{ 'A' is upper }}",
            "['b'][2]True",
        ),
        (
            "{% set d = {'n': 2, 'l': [3]} %}{{ -d.n }} {{ 1 - -d.n }} {{ -d['l'][0] }} {{ -d.n|abs }} {{ -d.n * 2 }}",
            "-2 3 -3 2 -4",
        ),
        (
            "{% set d = {'n': 2} %}{{ -d.get('n') }} {{ [-d.n, -1] }} {{ -(d.n + 1) }} {{ -d.n is number }}",
            "-2 [-2, -1] -3 True",
        ),
        ("{{ 'a b'|split|length }}{{ 'a-b'|split('-')|last }}{{ 'x'|list }}{{ 'a\\nb'|lines }}", "2b['x']['a', 'b']"),
        ("{{ dict(a=1, **{'b': 2}).b }}{{ namespace(a=[1, 2]).a[1] }}{{ loop is defined }}", "22False"),
    ] {
        assert_eq!(render(template).unwrap_or_else(|error| error.message), expected, "{template}");
    }
}

fn refused_soon(template: &str, word: &str) {
    let start = Instant::now();
    let result = render(template);
    let seconds = start.elapsed();
    let shown = &template[..template.len().min(260)];
    let error = result.expect_err(shown);
    assert!(error.message.contains(word), "{shown}: {error}");
    assert!(seconds < SOON, "{shown}: {seconds:?}");
}

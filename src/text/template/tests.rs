use super::*;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

fn parse(source: &str) -> Result<ChatTemplate, String> {
    let special =
        BTreeMap::from([("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())]);
    ChatTemplate::parse(source, &special)
}

fn render(source: &str) -> Result<String, TextError> {
    let messages = vec![
        json!({"role": "system", "content": "Be <brief> & 'kind'."}),
        json!({"role": "user", "content": "  Hi\\u003c\"there\"\n"}),
    ];
    let conversation = Conversation { messages, ..Conversation::default() };
    let now = UNIX_EPOCH + Duration::from_secs(1_735_689_599);
    parse(source).map_err(TextError::Render)?.render(&conversation, now)
}

#[test]
fn templates_render_as_transformers_renders_them() {
    // Expected texts are those of transformers' own environment (jinja2 3.1).
    for (source, expected) in [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if pad_token is defined %}x{% endif %}{{ unk_token }}", ""),
        (
            "{% for m in messages %}{{ m['role'] }}:{{ m.content | trim }};{% endfor %}",
            "system:Be <brief> & 'kind'.;user:Hi\\u003c\"there\";",
        ),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools %}t{% elif tools is none %}none{% endif %}", "none"),
        // Blocks swallow the line's end and its indent.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        (
            "{%- for m in messages -%}\n {{ loop.index0 }}{{ loop.last }} {%- endfor -%}",
            "0False1True",
        ),
        ("{{ messages[1].content.strip().split('\"')[1] }}", "there"),
        ("{{ messages[-1]['role'].upper() }} {{ messages[1:] | length }}", "USER 1"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("{{ messages[0].content | tojson }}", "\"Be <brief> & 'kind'.\""),
        ("{{ messages[1].content | tojson }}", "\"  Hi\\\\u003c\\\"there\\\"\\n\""),
        ("{{ [1, none, true, {'a': 'é'}] | tojson }}", "[1, null, true, {\"a\": \"é\"}]"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"),
        ("{{ none }} {{ true }} {{ 1 }} {{ missing }}", "None True 1 "),
        ("{{ strftime_now('%d %b %Y') }}", "31 Dec 2024"),
        ("{%- generation -%} x {%- endgeneration %}y{% generation %}z{% endgeneration %}", "xyz"),
        ("{{ '{% generation' }}{# {% x #}", "{% generation"),
        ("a\r\nb\rc\n{{ 'd\r\ne' }}{{ '\\r' }}", "a\nb\nc\nd\ne\r"),
        (
            "{{ {'b': 1, 'a': [none, 1e16, '<é\\'\"\\u2028']} }}",
            "{'b': 1, 'a': [None, 1e+16, '<é\\'\"\\u2028']}",
        ),
        (
            "{{ {'b': 1.0, 'a': '<é😀'} | tojson(true) }}",
            r#"{"b": 1.0, "a": "<\u00e9\ud83d\ude00"}"#,
        ),
        (
            "{{ {'b': 1e-7, 'a': {}, 'c': []} | tojson(sort_keys=true, separators=(',', ':')) }}",
            r#"{"a":{},"b":1e-07,"c":[]}"#,
        ),
        ("{{ [1, [2]] | tojson(indent='--') }}", "[\n--1,\n--[\n----2\n--]\n]"),
        ("{{ messages[::-1][0].role }}{{ 'abcd'[::-1] }}{{ 'abcd'[-3:-1] }}", "userdcbabc"),
        (
            "{{ 'a' is sequence }}{{ {} is sequence }}{{ x is iterable }}{{ none is iterable }}{{ 1 is sequence }}",
            "TrueTrueTrueFalseFalse",
        ),
        (
            "{{ true | string }}{{ none | string }}{{ [1.5] | string }}{{ x | string }}",
            "TrueNone[1.5]",
        ),
        (
            "{% for key, value in {'items': 1}.items() %}{{ key }}{{ value }}{% endfor %}{{ {'get': 2}.get('get') }}",
            "items12",
        ),
    ] {
        assert_eq!(render(source).expect(source), expected, "{source}");
    }
}

#[test]
fn a_refusal_is_in_the_templates_words() {
    let source = "{% macro check(m) %}{{ raise_exception('Only user and assistant, not ' + m.role) }}\
                  {% endmacro %}{% for m in messages %}{{ check(m) }}{% endfor %}";
    let error = render(source).expect_err("raised");
    assert!(matches!(error, TextError::Refused(_)), "{error:?}");
    assert_eq!(error.to_string(), "Only user and assistant, not system");
}

#[test]
fn faults_of_a_template_are_told() {
    for (source, said) in [
        ("{% for %}", "syntax error"),
        ("{{ messages[0].tools.name }}", "undefined"),
        ("{{ strftime_now('%Q') }}", "%Q"),
        ("{{ no_such() }}", "no_such"),
        ("{{ messages | tojson(other=1) }}", "other"),
    ] {
        let error = render(source).expect_err(source).to_string();
        assert!(error.contains(said), "{source}: {error}");
    }
}

#[test]
fn a_template_without_end_is_stopped() {
    let loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}\
                 {{ c }}{% endfor %}{% endfor %}{% endfor %}";
    for source in [loops, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"] {
        assert!(matches!(render(source), Err(TextError::Render(_))), "{source}");
    }
}

#[test]
fn a_long_conversation_is_no_runaway() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}";
    let content = "word ".repeat(2000);
    let messages = vec![json!({"role": "user", "content": content}); 400];
    let conversation = Conversation { messages, ..Conversation::default() };
    let rendered =
        parse(source).expect("valid").render(&conversation, UNIX_EPOCH).expect("rendered");
    assert!(rendered.len() > 4_000_000);
}

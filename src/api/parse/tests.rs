use daisy_proto::Sampling;
use serde_json::json;

use super::*;

fn served() -> ServedModel {
    ServedModel { id: "org/tiny-llama".to_owned(), context: 2048, created: 7 }
}

fn read(body: impl AsRef<[u8]>) -> Result<Chat, ParseError> {
    chat(body.as_ref(), &served(), "chatcmpl-1".to_owned())
}

/// A good body with `field` set to the JSON text `value`, beside whatever is there.
fn with(field: &str, value: &str) -> String {
    format!(
        r#"{{"model":"default","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}"#
    )
}

fn messages(value: &Value) -> Result<Vec<Value>, ParseError> {
    let body = json!({"model": "default", "messages": value}).to_string();
    read(body).map(|chat| chat.request.conversation.messages)
}

#[test]
fn the_least_request_has_the_defaults() {
    let chat = read(r#"{"model":"default","messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    let request = ChatRequest {
        id: "chatcmpl-1".to_owned(),
        conversation: Conversation {
            messages: vec![json!({"role": "user", "content": "hi"})],
            ..Conversation::default()
        },
        parallel_calls: true,
        max_tokens: None,
        sampling: Sampling { temperature: 1.0, ..Sampling::greedy() },
        seed: None,
        bias: Vec::new(),
        stop: Vec::new(),
        logprobs: None,
    };
    assert_eq!(chat, Chat { request, delivery: Delivery::Whole });
}

#[test]
fn null_means_the_default_but_for_what_is_required() {
    let plain = read(with("unknown", "1")).unwrap();
    let optional = [
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "stream",
        "stream_options",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop",
        "logprobs",
        "top_logprobs",
        "n",
        "user",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
    ];
    for field in optional.into_iter().chain(NOT_YET) {
        assert_eq!(read(with(field, "null")).unwrap(), plain, "{field}");
    }
    for field in ["model", "messages"] {
        let error = read(with(field, "null")).unwrap_err();
        assert_eq!(error.param(), Some(field));
        assert!(error.to_string().contains("got null"), "{error}");
    }
}

const NOT_YET: [&str; 9] = [
    "n",
    "functions",
    "function_call",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "modalities",
    "audio",
    "web_search_options",
];

#[test]
fn wrong_types_and_ranges_name_the_field_the_bound_and_the_value() {
    // Field, values as JSON text, what the error must say of the bound.
    let table: &[(&str, &[&str], &str)] = &[
        ("model", &["1", "true", "[]", "{}"], "a string"),
        ("messages", &["1", "true", "\"hi\"", "{}", "[]"], "at least one message"),
        (
            "temperature",
            &["-0.1", "2.1", "2.0000000001", "1e300", "\"1\"", "\"NaN\"", "true", "[]", "{}"],
            "a number from 0 to 2",
        ),
        ("top_p", &["0", "-1", "1.01", "1e300", "\"1\"", "true", "[]", "{}"], "above 0, at most 1"),
        (
            "top_k",
            &["-1", "0.5", "4294967296", "1e3", "\"5\"", "true", "[]", "{}"],
            "from 0 to 4294967295",
        ),
        (
            "seed",
            &["0.5", "18446744073709551616", "-9223372036854775809", "\"5\"", "true", "[]", "{}"],
            "from -9223372036854775808 to 18446744073709551615",
        ),
        (
            "max_tokens",
            &["0", "-1", "1.5", "16.0", "4294967296", "1e300", "\"5\"", "true", "[]", "{}"],
            "from 1 to 4294967295",
        ),
        ("min_p", &["-0.1", "1.01", "1e300", "\"0\"", "true", "[]", "{}"], "a number from 0 to 1"),
        (
            "repetition_penalty",
            &["0", "0.009", "-1", "2.1", "1e300", "\"1\"", "true", "[]", "{}"],
            "a number from 0.01 to 2",
        ),
        ("presence_penalty", &["-2.1", "2.1", "\"0\"", "true", "[]"], "a number from -2 to 2"),
        ("frequency_penalty", &["-2.1", "2.1", "\"0\"", "true", "[]"], "a number from -2 to 2"),
        (
            "logit_bias",
            &[
                "1",
                "[]",
                "\"5\"",
                "true",
                "{\"a\":1}",
                "{\"-5\":1}",
                "{\"+5\":1}",
                "{\" 5\":1}",
                "{\"\":1}",
                "{\"5.0\":1}",
                "{\"4294967296\":1}",
                "{\"5\":100.1}",
                "{\"5\":-101}",
                "{\"5\":\"1\"}",
                "{\"5\":null}",
                "{\"5\":1,\"6\":[]}",
            ],
            "at most 1024 token ids with numbers from -100 to 100",
        ),
        (
            "stop",
            &[
                "1",
                "true",
                "{}",
                "\"\"",
                "[\"\"]",
                "[\"a\",1]",
                "[null]",
                "[\"a\",\"b\",\"c\",\"d\",\"e\"]",
            ],
            "a string of 1 to 500 characters, or a list of at most 4 of them",
        ),
        ("logprobs", &["0", "1", "5", "\"true\"", "[]", "{}"], "true or false"),
        (
            "top_logprobs",
            &["-1", "21", "1.5", "4294967296", "\"5\"", "true", "[]", "{}"],
            "a whole number from 0 to 20",
        ),
        ("top_logprobs", &["1", "20"], "left out or 0 unless logprobs is true"),
        ("max_completion_tokens", &["0", "-1", "\"5\"", "[]"], "from 1 to 4294967295"),
        ("stream", &["0", "1", "\"true\"", "[]", "{}"], "true or false"),
        ("stream_options", &["0", "true", "\"x\"", "[]"], "an object"),
        ("user", &["1", "[]"], "a string"),
        ("parallel_tool_calls", &["1", "\"true\""], "true or false"),
        ("tools", &["1", "true", "{}", "\"f\""], "a list of at most 128 tools"),
        ("chat_template_kwargs", &["1", "true", "[]", "\"x\""], "an object"),
        ("chat_template_kwargs", &["{\"messages\":[]}"], "without messages"),
        ("chat_template_kwargs", &["{\"x\":1,\"tools\":null}"], "without tools"),
    ];
    for (field, values, bound) in table {
        for value in *values {
            let error = read(with(field, value)).unwrap_err();
            let said = error.to_string();
            assert_eq!(error.param(), Some(*field), "{field}={value}: {said}");
            assert!(said.contains(bound), "{field}={value}: {said}");
            assert!(matches!(error, ParseError::Wrong { .. }), "{field}={value}: {said}");
        }
    }
    let said = read(with("temperature", "2.5")).unwrap_err().to_string();
    assert_eq!(said, "temperature must be a number from 0 to 2, got 2.5");
    let said = read(with("top_k", "\"many\"")).unwrap_err().to_string();
    assert_eq!(said, "top_k must be a whole number from 0 to 4294967295, got the string \"many\"");
}

#[test]
#[allow(clippy::float_cmp, reason = "a value that is passed on is not rounded")]
fn bounds_are_inside() {
    let request = |field, value| read(with(field, value)).unwrap().request;
    let temperatures = [("0", 0.0), ("-0.0", 0.0), ("2", 2.0), ("0.7", 0.7), ("1e-300", 0.0)];
    for (value, temperature) in temperatures {
        assert_eq!(request("temperature", value).sampling.temperature, temperature, "{value}");
    }
    assert_eq!(request("top_p", "1").sampling.top_p, 1.0);
    assert!(request("top_p", "1e-300").sampling.top_p > 0.0);
    assert_eq!(request("top_k", "4294967295").sampling.top_k, u32::MAX);
    assert_eq!(request("seed", "18446744073709551615").seed, Some(u64::MAX));
    assert_eq!(request("seed", "-1").seed, Some(u64::MAX));
    assert_eq!(request("seed", "0").seed, Some(0));
    assert_eq!(request("max_tokens", "1").max_tokens, Some(1));
    assert_eq!(request("max_completion_tokens", "9").max_tokens, Some(9));
}

#[test]
#[allow(clippy::float_cmp, reason = "a value that is passed on is not rounded")]
fn penalties_stops_and_log_probabilities_are_read() {
    let request = |field, value: &str| read(with(field, value)).unwrap().request;
    for (value, expected) in [("0", 0.0), ("0.5", 0.5), ("1", 1.0)] {
        assert_eq!(request("min_p", value).sampling.min_p, expected);
    }
    for (value, expected) in [("-2", -2.0), ("0.5", 0.5), ("2", 2.0)] {
        assert_eq!(request("presence_penalty", value).sampling.presence_penalty, expected);
        assert_eq!(request("frequency_penalty", value).sampling.frequency_penalty, expected);
    }
    for (value, expected) in [("0.01", 0.01), ("1", 1.0), ("2", 2.0)] {
        assert_eq!(request("repetition_penalty", value).sampling.repetition_penalty, expected);
    }
    for (value, expected) in [
        ("{}", vec![]),
        (r#"{"7":-100,"5":100}"#, vec![(5, 100.0), (7, -100.0)]),
        (r#"{"7":1,"07":2.5}"#, vec![(7, 2.5)]),
    ] {
        assert_eq!(request("logit_bias", value).bias, expected, "{value}");
    }
    let many: Vec<String> = (0..1025).map(|id| format!("\"{id}\":1")).collect();
    let object = |count: usize| format!("{{{}}}", many[..count].join(","));
    assert_eq!(request("logit_bias", &object(1024)).bias.len(), 1024);
    assert!(read(with("logit_bias", &object(1025))).is_err());
    for (value, expected) in
        [("[]", &[][..]), (r#""a""#, &["a"]), (r#"["a","\n\n"," ","é"]"#, &["a", "\n\n", " ", "é"])]
    {
        assert_eq!(request("stop", value).stop, expected, "{value}");
    }
    let long = |count| json!("é".repeat(count)).to_string();
    assert_eq!(request("stop", &long(500)).stop.len(), 1);
    assert!(read(with("stop", &long(501))).is_err());
    for (value, expected) in [
        ("false", None),
        (r#"false,"top_logprobs":0"#, None),
        ("true", Some(0)),
        (r#"true,"top_logprobs":null"#, Some(0)),
        (r#"true,"top_logprobs":20"#, Some(20)),
    ] {
        assert_eq!(request("logprobs", value).logprobs, expected, "{value}");
    }
}

#[test]
fn two_limits_must_agree() {
    let both = |older, newer| {
        read(with("max_tokens", &format!(r#"{older},"max_completion_tokens":{newer}"#)))
    };
    assert_eq!(both("5", "5").unwrap().request.max_tokens, Some(5));
    assert_eq!(both("null", "5").unwrap().request.max_tokens, Some(5));
    let error = both("4", "5").unwrap_err();
    assert_eq!(error.param(), Some("max_tokens"));
    assert!(error.to_string().contains("which is 5, got 4"), "{error}");
}

#[test]
fn how_the_answer_is_delivered() {
    let delivery = |fields: &str| read(with("stream", fields)).map(|chat| chat.delivery);
    let stream = |include_usage| Delivery::Stream { include_usage };
    let table = [
        ("false", Delivery::Whole),
        ("true", stream(false)),
        (r#"true,"stream_options":null"#, stream(false)),
        (r#"true,"stream_options":{}"#, stream(false)),
        (r#"true,"stream_options":{"include_usage":null}"#, stream(false)),
        (r#"true,"stream_options":{"include_usage":true,"more":1}"#, stream(true)),
    ];
    for (fields, expected) in table {
        assert_eq!(delivery(fields).unwrap(), expected, "{fields}");
    }
    let error = delivery(r#"true,"stream_options":{"include_usage":1}"#).unwrap_err();
    assert_eq!(error.param(), Some("stream_options.include_usage"));
    let error = delivery(r#"false,"stream_options":{"include_usage":true}"#).unwrap_err();
    assert_eq!(error.param(), Some("stream_options"));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let table: &[(&str, &[&str], &[&str])] = &[
        // Field, what is refused, what is harmless.
        ("n", &["0", "2", "1.5", "\"1\"", "[]"], &["1"]),
        ("functions", &["[{}]"], &["[]"]),
        ("function_call", &["{\"name\":\"f\"}"], &["\"none\""]),
        (
            "response_format",
            &["{\"type\":\"json_object\"}", "{}", "\"text\"", "[]", "1"],
            &["{\"type\":\"text\"}"],
        ),
        ("reasoning_effort", &["\"low\"", "1"], &["null"]),
        ("verbosity", &["\"low\""], &["\"medium\""]),
        ("modalities", &["[\"audio\"]", "[\"text\",\"audio\"]"], &["[\"text\"]"]),
        ("audio", &["{}"], &["null"]),
        ("web_search_options", &["{}"], &["null"]),
    ];
    assert_eq!(table.iter().map(|row| row.0).collect::<Vec<_>>(), NOT_YET);
    for (field, refused, harmless) in table {
        for value in *refused {
            let error = read(with(field, value)).unwrap_err();
            assert!(matches!(error, ParseError::Unsupported { .. }), "{field}={value}: {error}");
            assert_eq!(error.param(), Some(*field), "{field}={value}");
        }
        for value in *harmless {
            assert!(read(with(field, value)).is_ok(), "{field}={value}");
        }
    }
}

#[test]
fn unknown_fields_are_ignored() {
    for value in ["1", "null", "{}", "[[[]]]"] {
        assert!(read(with("metadata", value)).is_ok());
        assert!(read(with("a_field_of_next_year", value)).is_ok());
    }
}

#[test]
fn the_model_has_three_names() {
    for name in ["org/tiny-llama", "tiny-llama", "default"] {
        assert!(names_model(name, &served()), "{name}");
    }
    for name in ["", "org", "org/", "llama", "Tiny-Llama", "tiny-llama/", "/", "gpt-4"] {
        assert!(!names_model(name, &served()), "{name}");
        let body = json!({"model": name, "messages": [{"role": "user", "content": "hi"}]});
        let error = read(body.to_string()).unwrap_err();
        assert!(matches!(error, ParseError::UnknownModel { .. }), "{error}");
        assert!(
            error.to_string().contains("\"org/tiny-llama\" (also as \"default\" or"),
            "{error}"
        );
    }
    let plain = ServedModel { id: "tiny".to_owned(), ..served() };
    assert!(names_model("tiny", &plain) && !names_model("", &plain));
}

#[test]
fn bodies_that_are_no_json_object() {
    let deep = format!(r#"{{"model":{}1{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    let long_number = format!(r#"{{"top_k":{}}}"#, "9".repeat(100_000));
    let table: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"{\"model\"}",
        b"{} {}",
        b"nul",
        b"NaN",
        b"{\"temperature\":NaN}",
        b"{\"temperature\":1e999}",
        b"{\"temperature\":-Infinity}",
        b"{\"temperature\":01}",
        b"{\"model\":\"\xff\xfe\"}",
        b"{\"model\":\"\\ud800\"}",
        b"{\"model\":\"a\nb\"}",
        b"\xef\xbb\xbf{}",
        b"\0",
        deep.as_bytes(),
        long_number.as_bytes(),
    ];
    for body in table {
        let error = read(body).unwrap_err();
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]);
        assert!(matches!(error, ParseError::Json(_)), "{shown:?}: {error}");
        assert!(error.to_string().len() < 200, "{shown:?}: {error}");
    }
    for body in ["[]", "[1,2]", "1", "\"hi\"", "null", "true"] {
        let error = read(body).unwrap_err();
        assert!(matches!(error, ParseError::NotAnObject { .. }), "{body}: {error}");
    }
    for (body, param) in [("{}", "model"), (r#"{"model":"default"}"#, "messages")] {
        let error = read(body).unwrap_err();
        assert!(matches!(error, ParseError::Missing { .. }), "{body}: {error}");
        assert_eq!(error.param(), Some(param));
    }
}

#[test]
fn of_a_repeated_key_the_last_counts() {
    let chat = read(with("top_k", r#"1,"top_k":2"#)).unwrap();
    assert_eq!(chat.request.sampling.top_k, 2);
    assert_eq!(read(with("model", "1")).unwrap_err().param(), Some("model"));
}

#[test]
fn messages_that_are_right() {
    let read = messages(&json!([
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b", "reasoning": "not the assistant's"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "", "x": 1}]},
        {"role": "assistant", "content": null, "tool_calls": [], "refusal": null, "audio": null},
        {"role": "assistant"},
        {"role": "tool", "content": "d", "tool_call_id": "x", "name": null, "unknown": 1},
        {"role": "user", "content": [{"type": "text", "text": ""}], "name": "anna"},
        {"role": "assistant", "content": "e", "reasoning": "f", "reasoning_content": null},
    ]));
    let expected = json!([
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "d", "tool_call_id": "x"},
        {"role": "user", "content": "", "name": "anna"},
        {"role": "assistant", "content": "e", "thinking": "f", "reasoning": "f", "reasoning_content": "f"},
    ]);
    assert_eq!(Value::Array(read.unwrap()), expected);
}

#[test]
fn calls_in_the_history_become_what_templates_read() {
    let call =
        |function: Value| json!({"index": 0, "function": function, "id": "x", "type": "function"});
    let given = json!([
        call(json!({"name": "f", "arguments": "{\"b\": [1.5, null], \"a\": \"é\"}"})),
        call(json!({"arguments": " ", "name": "g", "more": 1})),
        call(json!({"name": "h", "arguments": {"a": 1}})),
        {"function": {"name": "i", "arguments": null}, "id": null},
    ]);
    let message = json!([{"role": "assistant", "content": null, "tool_calls": given}]);
    let read = messages(&message).unwrap();
    // The order of keys, too, is the client's.
    let expected = concat!(
        r#"[{"function":{"name":"f","arguments":{"b":[1.5,null],"a":"é"}},"id":"x","type":"function"},"#,
        r#"{"function":{"arguments":{},"name":"g"},"id":"x","type":"function"},"#,
        r#"{"function":{"name":"h","arguments":{"a":1}},"id":"x","type":"function"},"#,
        r#"{"function":{"name":"i","arguments":{}}}]"#,
    );
    assert_eq!(read[0]["tool_calls"].to_string(), expected);
}

#[test]
fn tools_are_passed_on_as_they_are() {
    let tools = json!([
        {"type": "function", "function": {"parameters": {"z": 1, "a": {"type": ["null"]}}, "name": "f-1.x", "strict": false}},
        {"function": {"name": "g", "description": null}, "type": "function", "more": 1},
    ]);
    let request =
        |fields: &str| read(with("tools", &format!("{tools}{fields}"))).map(|chat| chat.request);
    for fields in ["", r#","tool_choice":"auto""#, r#","tool_choice":null"#] {
        let conversation = request(fields).unwrap().conversation;
        assert_eq!(Value::Array(conversation.tools).to_string(), tools.to_string());
    }
    assert!(request(r#","tool_choice":"none""#).unwrap().conversation.tools.is_empty());
    assert!(!request(r#","parallel_tool_calls":false"#).unwrap().parallel_calls);
    let variables = json!({"enable_thinking": false, "x": {"b": 1, "a": null}});
    let chat = read(with("chat_template_kwargs", &variables.to_string())).unwrap();
    assert_eq!(Value::Object(chat.request.conversation.variables), variables);
}

#[test]
fn tools_that_are_wrong_name_the_place() {
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let deep = json!([{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}]);
    for (tools, place) in [
        (json!([1]), "tools[0]"),
        (json!([{}]), "tools[0].type"),
        (deep, "tools[1].type"),
        (json!([{"type": "function"}]), "tools[0].function"),
        (function(json!("f")), "tools[0].function"),
        (function(json!({})), "tools[0].function.name"),
        (function(json!({"name": ""})), "tools[0].function.name"),
        (function(json!({"name": "a b"})), "tools[0].function.name"),
        (function(json!({"name": "é"})), "tools[0].function.name"),
        (function(json!({"name": "a".repeat(129)})), "tools[0].function.name"),
        (function(json!({"name": "f", "description": 1})), "tools[0].function.description"),
        (function(json!({"name": "f", "parameters": []})), "tools[0].function.parameters"),
        (function(json!({"name": "f", "strict": 1})), "tools[0].function.strict"),
        (function(json!({"name": "f", "strict": true})), "tools[0].function.strict"),
    ] {
        let error = read(with("tools", &tools.to_string())).unwrap_err();
        assert_eq!(error.param(), Some(place), "{tools}: {error}");
    }
    let many = Value::Array(vec![json!({"type": "function", "function": {"name": "f"}}); 129]);
    assert_eq!(read(with("tools", &many.to_string())).unwrap_err().param(), Some("tools"));
    for choice in
        [json!("required"), json!({"type": "function", "function": {"name": "f"}}), json!(1)]
    {
        let error = read(with("tool_choice", &choice.to_string())).unwrap_err();
        assert!(matches!(error, ParseError::Unsupported { .. }), "{choice}: {error}");
        assert_eq!(error.param(), Some("tool_choice"));
    }
}

#[test]
fn messages_that_are_wrong_name_the_place() {
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]);
    let table = [
        (json!([null]), "messages[0]"),
        (json!(["hi"]), "messages[0]"),
        (json!([[]]), "messages[0]"),
        (json!([{"role": "user", "content": "a"}, 1]), "messages[1]"),
        (json!([{}]), "messages[0].role"),
        (json!([{"role": null, "content": "a"}]), "messages[0].role"),
        (json!([{"role": 1, "content": "a"}]), "messages[0].role"),
        (json!([{"role": "User", "content": "a"}]), "messages[0].role"),
        (json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (json!([{"role": "system", "content": null}]), "messages[0].content"),
        (json!([{"role": "tool", "content": null}]), "messages[0].content"),
        (json!([{"role": "user", "content": 1}]), "messages[0].content"),
        (json!([{"role": "user", "content": {}}]), "messages[0].content"),
        (json!([{"role": "user", "content": []}]), "messages[0].content"),
        (json!([{"role": "user", "content": ["a"]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": [null]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": [{}]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": 1}]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": image}]), "messages[0].content[1].type"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": null}]}]),
            "messages[0].content[0].text",
        ),
        (json!([{"role": "user", "content": "a", "name": 1}]), "messages[0].name"),
        (json!([{"role": "tool", "content": "a", "tool_call_id": 1}]), "messages[0].tool_call_id"),
        (json!([{"role": "assistant", "reasoning": 1}]), "messages[0].reasoning"),
        (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls"),
        (json!([{"role": "user", "content": "a", "tool_calls": [1]}]), "messages[0].tool_calls"),
        (json!([{"role": "assistant", "tool_calls": [1]}]), "messages[0].tool_calls[0]"),
        (json!([{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0].function"),
        (calling(&json!({"id": 1})), "messages[0].tool_calls[0].id"),
        (calling(&json!({"type": "custom"})), "messages[0].tool_calls[0].type"),
        (calling(&json!({"function": {}})), "messages[0].tool_calls[0].function.name"),
        (calling(&json!({"function": {"name": ""}})), "messages[0].tool_calls[0].function.name"),
        (calling_with(&json!("{")), "messages[0].tool_calls[0].function.arguments"),
        (calling_with(&json!("[]")), "messages[0].tool_calls[0].function.arguments"),
        (calling_with(&json!(1)), "messages[0].tool_calls[0].function.arguments"),
        (json!([{"role": "assistant", "function_call": {}}]), "messages[0].function_call"),
        (json!([{"role": "assistant", "audio": {"id": "a"}}]), "messages[0].audio"),
    ];
    for (value, place) in table {
        let error = messages(&value).unwrap_err();
        assert_eq!(error.param(), Some(place), "{value}: {error}");
        assert!(error.to_string().starts_with(place), "{value}: {error}");
    }
    let said = messages(&json!([{"role": "user", "content": image_only()}])).unwrap_err();
    assert!(said.to_string().contains("no images"), "{said}");
}

fn calling(call: &Value) -> Value {
    json!([{"role": "assistant", "tool_calls": [call]}])
}

fn calling_with(arguments: &Value) -> Value {
    calling(&json!({"function": {"name": "f", "arguments": arguments}}))
}

fn image_only() -> serde_json::Value {
    json!([{"type": "image_url", "image_url": {"url": "data:"}}])
}

#[test]
fn a_long_value_is_shortened() {
    let error = read(with("temperature", &json!("é".repeat(10_000)).to_string())).unwrap_err();
    assert!(error.to_string().len() < 250, "{error}");
}

//! Bad input of every kind: each gets a status and an error that names what is wrong, and the
//! node never hears of it.

use super::*;

#[tokio::test]
async fn bad_bodies() {
    let image = r#","messages":[{"role":"user","content":[{"type":"image_url"}]}]"#;
    let table: Vec<(String, u16, &str, Option<&str>)> = vec![
        (String::new(), 400, "invalid_json", None),
        ("{".to_owned(), 400, "invalid_json", None),
        ("[]".to_owned(), 400, "invalid_json", None),
        ("[".repeat(100_000), 400, "invalid_json", None),
        ("{}".to_owned(), 400, "missing_required_parameter", Some("model")),
        (chat(r#","model":null"#), 400, "invalid_value", Some("model")),
        (chat(r#","model":"gpt-4""#), 404, "model_not_found", Some("model")),
        (chat(r#","messages":null"#), 400, "invalid_value", Some("messages")),
        (chat(r#","messages":[]"#), 400, "invalid_value", Some("messages")),
        (chat(image), 400, "invalid_value", Some("messages[0].content[0].type")),
        (chat(r#","temperature":3"#), 400, "invalid_value", Some("temperature")),
        (chat(r#","max_tokens":0"#), 400, "invalid_value", Some("max_tokens")),
        (chat(r#","stop":["a",""]"#), 400, "invalid_value", Some("stop")),
        (chat(r#","top_logprobs":5"#), 400, "invalid_value", Some("top_logprobs")),
        (chat(r#","logit_bias":{"a":1}"#), 400, "invalid_value", Some("logit_bias")),
        (chat(r#","n":2"#), 400, "unsupported_parameter", Some("n")),
        (chat(r#","tools":[{}]"#), 400, "missing_required_parameter", Some("tools[0].type")),
        (chat(r#","tool_choice":"required""#), 400, "unsupported_parameter", Some("tool_choice")),
    ];
    let mut fake = Fake::start().await;
    for (body, status, code, param) in table {
        for stream in ["", r#","stream":true}"#] {
            let body = match body.strip_suffix('}') {
                Some(open) if !stream.is_empty() && open.len() > 1 => format!("{open}{stream}"),
                _ => body.clone(),
            };
            let reply = fake.ask(&post(&body)).await;
            let shown: String = body.chars().take(120).collect();
            assert_eq!(reply.status, status, "{shown}");
            let (got_code, got_param, _) = reply.error();
            assert_eq!((got_code.as_str(), got_param.as_deref()), (code, param), "{shown}");
            assert!(reply.header("x-request-id").unwrap().starts_with("chatcmpl-"), "{shown}");
        }
    }
    let reply = fake.ask(&post(b"{\"model\":\"\xff\"}")).await;
    assert_eq!((reply.status, reply.error().0.as_str()), (400, "invalid_json"));
    assert!(fake.submissions.try_recv().is_err(), "nothing reached the node");
}

#[tokio::test]
async fn what_the_node_refuses() {
    let table = [
        (
            SubmitError::Invalid {
                param: "messages",
                message: "the prompt has 3000 tokens, the context 2048".to_owned(),
            },
            (400, "invalid_value", Some("messages"), None),
        ),
        (
            SubmitError::QueueFull { waiting: 64, retry_after_s: 7 },
            (429, "queue_full", None, Some("7")),
        ),
        (
            SubmitError::NotReady("rank 1 is on its way".to_owned()),
            (503, "not_ready", None, Some("5")),
        ),
    ];
    for (error, (status, code, param, retry_after)) in table {
        for more in ["", r#","stream":true"#] {
            let mut fake = Fake::start().await;
            let client = fake.send(&post(chat(more))).await;
            fake.refuse(error.clone()).await;
            let reply = client.reply().await;
            assert_eq!(reply.status, status);
            assert_eq!(
                reply.error(),
                (code.to_owned(), param.map(str::to_owned), error.to_string())
            );
            assert_eq!(reply.header("retry-after"), retry_after);
        }
    }
}

#[tokio::test]
async fn a_node_that_is_gone() {
    let fake = Fake::start().await;
    let Fake { addr, submissions, state: _state, stop: _stop, running: _running } = fake;
    drop(submissions);
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(&post(chat(""))).await.unwrap();
    let reply = Client { socket, read: Vec::new() }.reply().await;
    assert_eq!((reply.status, reply.error().0.as_str()), (503, "not_ready"));
}

#[tokio::test]
async fn paths_and_methods() {
    let fake = Fake::start().await;
    let table = [
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/v1/nothing", 404, "unknown_path"),
        ("POST", "/v1/completions", 404, "unknown_path"),
        ("GET", "/v1/chat/completions/", 404, "unknown_path"),
        ("GET", "/v1/models/gpt-4", 404, "model_not_found"),
        ("GET", "/v1/models/%ff", 400, "bad_path"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ];
    for (method, path, status, code) in table {
        let request = String::from_utf8(get(path)).unwrap().replace("GET", method);
        let reply = fake.ask(request.as_bytes()).await;
        assert_eq!((reply.status, reply.error().0.as_str()), (status, code), "{method} {path}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{method} {path}");
        assert!(!reply.head.contains("access-control"), "{reply:?}");
    }
}

#[tokio::test]
async fn hosts() {
    let fake = Fake::start().await;
    let table = [
        ("GET /health HTTP/1.1\r\nhost: evil.example", 403, "host_not_allowed"),
        ("GET /health HTTP/1.1\r\nhost: 127.0.0.1.evil.example:80", 403, "host_not_allowed"),
        ("GET /no/such/path HTTP/1.1\r\nhost: evil.example", 403, "host_not_allowed"),
        ("GET http://evil.example/health HTTP/1.1\r\nhost: localhost", 403, "host_not_allowed"),
        ("GET /health HTTP/1.1\r\nhost: ", 403, "host_not_allowed"),
        ("GET /health HTTP/1.1", 400, "bad_host"),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost", 400, "bad_host"),
    ];
    for (head, status, code) in table {
        let reply = fake.ask(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await;
        assert_eq!((reply.status, reply.error().0.as_str()), (status, code), "{head}");
    }
    let good = ["HTTP/1.1\r\nhost: localhost:9", "HTTP/1.1\r\nhost: [::1]:8100", "HTTP/1.0"];
    for head in good {
        let request = format!("GET /health {head}\r\nconnection: close\r\n\r\n");
        assert_eq!(fake.ask(request.as_bytes()).await.status, 200, "{head}");
    }
}

#[tokio::test]
async fn content_types() {
    let mut fake = Fake::start().await;
    let request = |line: &str| {
        let request = String::from_utf8(post(chat(""))).unwrap();
        request.replace("content-type: application/json\r\n", line)
    };
    let bad = ["", "content-type: text/plain\r\n", "content-type: application/jsonp\r\n"];
    for line in bad.into_iter().chain(["content-type: application/x-www-form-urlencoded\r\n"]) {
        let reply = fake.ask(request(line).as_bytes()).await;
        assert_eq!((reply.status, reply.error().0.as_str()), (415, "content_type"), "{line}");
    }
    for line in ["content-type: Application/JSON ; charset=utf-8\r\n"] {
        let client = fake.send(request(line).as_bytes()).await;
        fake.admit_with([finished(FinishReason::Stop)]).await;
        assert_eq!(client.reply().await.status, 200, "{line}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_large() {
    let fake = Fake::start().await;
    let body = vec![b' '; super::super::body::BODY_BYTES_MAX + 1];
    let reply = fake.ask(&post(&body)).await;
    assert_eq!((reply.status, reply.error().0.as_str()), (413, "body_too_large"));
    // The largest that fits is read to its end, and found to be no JSON.
    let reply = fake.ask(&post(&body[1..])).await;
    assert_eq!((reply.status, reply.error().0.as_str()), (400, "invalid_json"));
}

#[tokio::test]
async fn a_broken_body() {
    let fake = Fake::start().await;
    let request = String::from_utf8(post(chat(""))).unwrap();
    let (head, _) = request.split_once("content-length").unwrap();
    let reply =
        fake.ask(format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n").as_bytes()).await;
    assert_eq!((reply.status, reply.error().0.as_str()), (400, "body_broken"));
}

//! What users see when something goes wrong.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{
    Cluster, Endless, Home, Process, Stream, alive, await_gone, body, delta, get, kill, post, tiny,
};

/// Tokens that take much longer than any test.
const LONG: u32 = 8000;

/// A stream that has begun and would go on for long.
fn long_stream(cluster: &Cluster) -> Stream {
    long_stream_at(&cluster.url)
}

fn long_stream_at(url: &str) -> Stream {
    let mut stream =
        Stream::open(url, &body("count", &json!({"max_tokens": LONG, "stream": true})));
    let mut text = String::new();
    while text.is_empty() {
        text = delta(&stream.event().expect("it has begun"));
    }
    stream
}

/// The error that ends a stream, and how long after `since` it came.
fn error_of(mut stream: Stream, since: Instant) -> (Value, Duration) {
    loop {
        let event = stream.event().expect("an error before the end of the stream");
        let event: Value = serde_json::from_str(&event).expect("JSON, and no [DONE]");
        if !event["error"].is_null() {
            let after = since.elapsed();
            assert_eq!(stream.event(), None, "nothing follows an error");
            return (event, after);
        }
    }
}

#[test]
fn a_killed_rank_ends_its_streams_and_its_node_lives() {
    let model = Endless::new();
    let cluster = Cluster::loopback(model.path(), "2,3");
    let stream = long_stream(&cluster);
    let killed = Instant::now();
    kill(cluster.pids[1], "-9");
    let (error, after) = error_of(stream, killed);
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("node1") && message.contains("signal 9"), "{message}");
    assert!(after < Duration::from_secs(5), "{after:?}");
    cluster.serve.line("hint: requests get 503");
    let (status, answer) = post(&cluster.url, &body("still there?", &json!({})));
    assert_eq!(status, 503);
    assert!(answer["error"]["message"].as_str().expect("a message").contains("node1"), "{answer}");
    let root = cluster.url.trim_end_matches("/v1");
    assert_eq!(get(&format!("{root}/health")).0, 200);
    assert_eq!(get(&format!("{root}/ready")).0, 503);
    // Both nodes live, and no rank is left behind.
    for home in &cluster.homes {
        assert!(home.status().contains("control"));
    }
    cluster.pids.iter().for_each(|pid| await_gone(*pid));
}

#[test]
fn a_killed_node_is_noticed_and_its_rank_goes_with_it() {
    let model = Endless::new();
    let mut cluster = Cluster::loopback(model.path(), "2,3");
    let stream = long_stream(&cluster);
    let killed = Instant::now();
    cluster.nodes[1].signal("-9");
    cluster.nodes[1].child.wait().expect("killed");
    let (error, after) = error_of(stream, killed);
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("node1"), "{message}");
    assert!(after < Duration::from_secs(5), "{after:?}");
    cluster.pids.iter().for_each(|pid| await_gone(*pid));
}

#[test]
fn a_frozen_rank_is_noticed() {
    let model = Endless::new();
    let cluster = Cluster::loopback(model.path(), "2,3");
    let stream = long_stream(&cluster);
    let stopped = Instant::now();
    kill(cluster.pids[1], "-STOP");
    let (error, after) = error_of(stream, stopped);
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("node1"), "{message}");
    assert!(after < Duration::from_secs(5), "{after:?}");
    // It cannot end by itself any more, so its node kills it.
    await_gone(cluster.pids[1]);
}

#[test]
fn no_rank_outlives_a_killed_driver() {
    let model = Endless::new();
    let mut cluster = Cluster::loopback(model.path(), "2,3");
    cluster.nodes[0].signal("-9");
    cluster.nodes[0].child.wait().expect("killed");
    cluster.pids.iter().for_each(|pid| await_gone(*pid));
    assert!(cluster.homes[1].status().contains("control"), "the other node lives");
    assert_ne!(cluster.serve.exit_code(), Some(0));
}

#[test]
fn ctrl_c_drains_unloads_and_ends_well() {
    let model = Endless::new();
    let mut cluster = Cluster::loopback(model.path(), "2,3");
    let answer =
        Stream::open(&cluster.url, &body("short", &json!({"max_tokens": 8, "stream": true})));
    cluster.serve.signal("-INT");
    answer.text(); // A running request ends as if nothing had happened.
    assert_eq!(cluster.serve.exit_code(), Some(0));
    cluster.serve.line("every rank is gone");
    assert!(cluster.pids.iter().all(|pid| !alive(*pid)));
    assert!(cluster.homes[0].status().contains("serving  nothing"));
}

#[test]
fn a_second_ctrl_c_does_not_wait() {
    let model = Endless::new();
    let mut cluster = Cluster::loopback(model.path(), "2,3");
    let stream = long_stream(&cluster);
    cluster.serve.signal("-INT");
    cluster.serve.line("Ctrl+C again");
    let again = Instant::now();
    cluster.serve.signal("-INT");
    assert_eq!(cluster.serve.exit_code(), Some(0));
    assert!(again.elapsed() < Duration::from_secs(3), "{:?}", again.elapsed());
    drop(stream);
    cluster.pids.iter().for_each(|pid| await_gone(*pid));
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_a_node_that_serve_hosts() {
    let model = Endless::new();
    let home = Home::new("alone");
    let mut serve = Process::spawn(home.serve(model.path(), &[]));
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let stream = long_stream_at(url);
    serve.signal("-INT");
    serve.line("Ctrl+C again");
    let again = Instant::now();
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
    assert!(again.elapsed() < Duration::from_secs(3), "{:?}", again.elapsed());
    drop(stream);
}

#[test]
fn a_client_that_leaves_is_cancelled_on_every_rank() {
    let model = Endless::new();
    let cluster = Cluster::loopback(model.path(), "2,3");
    drop(long_stream(&cluster));
    let line = cluster.nodes[0].line("request finished");
    assert!(line.contains("Cancelled"), "{line}");
    let tokens = line.split("completion_tokens=").nth(1).expect("a count");
    let tokens: u32 = tokens.split(' ').next().expect("a count").parse().expect("a number");
    assert!(tokens < LONG, "{line}");
    // The place is free again.
    cluster.text("next", &json!({"max_tokens": 4}));
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_numbers() {
    let cluster = Cluster::start(
        vec![(Home::new("node0"), "127.0.0.1:0".to_owned())],
        &tiny("llama-f32"),
        &["--context", "64"],
    );
    let (status, answer) = post(&cluster.url, &body(&"word ".repeat(100), &json!({})));
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("64"), "{message}");
    // An answer ends where the context does.
    let answer = cluster.ask("hi", &json!({"max_tokens": 1000}));
    let usage = &answer["usage"];
    assert!(usage["total_tokens"].as_u64().expect("a number") <= 64, "{usage}");
}

#[test]
fn strangers_are_refused_with_the_remedy() {
    let (driver, stranger) = (Home::new("driver"), Home::new("stranger"));
    let node = stranger.up("127.0.0.1:0");
    let addr = node.line("is up").rsplit(' ').next().expect("an address").to_owned();
    let model = tiny("llama-f32");
    let refused = |expected: &str| {
        let mut serve = Process::spawn(driver.serve(&model, &["--peer", &addr]));
        assert_eq!(serve.exit_code(), Some(1), "{}", serve.output());
        assert!(serve.output().contains(expected), "{}", serve.output());
    };
    // Nobody trusts anybody, then only one side does.
    refused(&format!("daisy cluster trust {}", stranger.id()));
    driver.trust(&stranger);
    refused(&format!("daisy cluster trust {}", driver.id()));
    // A running node sees a new trust at once.
    stranger.trust(&driver);
    let serve = Process::spawn(driver.serve(&model, &["--peer", &addr]));
    serve.line("OpenAI endpoint");
}

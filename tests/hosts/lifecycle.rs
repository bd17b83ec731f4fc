//! How long a model is served: for as long as its command runs, or until somebody stops it.

use std::time::Instant;

use serde_json::{Value, json};

use super::cluster::{Home, PATIENCE, Process, Ready, body, post, tiny};

fn one() -> Ready {
    Ready::new(vec![(Home::new("node"), "127.0.0.1:0".to_owned())])
}

fn serves(ready: &Ready) -> bool {
    ready.homes[0].status().contains("llama-f32")
}

fn run(ready: &Ready, args: &[&str]) -> (Option<i32>, String) {
    let mut process = Process::spawn(ready.homes[0].daisy(args));
    let code = process.exit_code();
    (code, process.output())
}

#[test]
fn a_model_stays_when_its_command_leaves_it_and_goes_when_it_is_stopped() {
    let ready = one();
    let model = tiny("llama-f32");
    let mut serve = ready.serve(&model, &["--detach"]);
    let line = serve.line("OpenAI endpoint");
    assert_eq!(serve.exit_code(), Some(0));
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    assert_eq!(post(url, &body("hello", &json!({"max_tokens": 4}))).0, 200);
    assert!(serves(&ready));
    let output = ready.homes[0].daisy(&["cluster", "status", "--json"]).output().expect("runs");
    let status: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let rank = &status["ranks"][0];
    assert_eq!((&rank["node"], &rank["rank"]), (&json!("node"), &json!(0)), "{status}");
    assert_eq!(rank["layers"], json!({"start": 0, "end": 5}), "{status}");
    assert!(rank["resident_bytes"].as_u64() >= rank["weight_bytes"].as_u64(), "{status}");
    assert!(rank["pid"].as_u64().is_some_and(|pid| pid > 0), "{status}");
    let mut watching = Process::spawn(ready.homes[0].daisy(&["cluster", "status", "--watch"]));
    let second_time = Instant::now() + PATIENCE;
    while watching.output().matches("serving  ").count() < 2 {
        assert!(Instant::now() < second_time, "{}", watching.output());
        std::thread::yield_now();
    }
    watching.signal("-INT");
    watching.exit_code();
    let mut second = ready.serve(&model, &[]);
    assert_eq!(second.exit_code(), Some(1));
    assert!(second.output().contains("serves"), "{}", second.output());

    assert_eq!(run(&ready, &["cluster", "stop"]).0, Some(0));
    // Stopped means that it is gone: the place is free at once.
    assert!(!serves(&ready));
    let (code, said) = run(&ready, &["cluster", "stop"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("this node serves nothing"), "{said}");
    let mut again = ready.serve(&model, &["--detach"]);
    assert_eq!(again.exit_code(), Some(0), "{}", again.output());
    // The node's own end is the model's, too.
    assert_eq!(run(&ready, &["cluster", "down"]).0, Some(0));
}

#[test]
fn a_lost_terminal_leaves_the_model_and_a_killed_command_does_not() {
    let ready = one();
    let mut serve = ready.serve(&tiny("llama-f32"), &[]);
    serve.line("OpenAI endpoint");
    serve.signal("-HUP");
    assert_eq!(serve.exit_code(), Some(0));
    assert!(serves(&ready));
    assert_eq!(run(&ready, &["cluster", "stop"]).0, Some(0));

    let mut serve = ready.serve(&tiny("llama-f32"), &[]);
    serve.line("OpenAI endpoint");
    serve.signal("-KILL");
    serve.exit_code();
    let until = Instant::now() + PATIENCE;
    while serves(&ready) {
        assert!(Instant::now() < until, "nobody wants it, and it is still served");
    }
}

#[test]
fn a_node_inside_the_command_cannot_be_left() {
    let home = Home::new("alone");
    let mut serve = Process::spawn(home.serve(&tiny("llama-f32"), &["--detach"]));
    assert_eq!(serve.exit_code(), Some(2));
    assert!(serve.output().contains("hint: start one: `daisy cluster up`"), "{}", serve.output());
}

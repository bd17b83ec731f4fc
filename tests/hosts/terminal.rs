//! `daisy chat` and `daisy cluster logs`, as a person or a script uses them.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use super::cluster::{Cluster, Home, tiny, turn};

/// Types `lines` into a chat and gives what it printed and said.
fn chat(home: &Home, url: &str, lines: &str) -> (String, String) {
    let mut child = home
        .daisy(&["chat", "--url", url, "--temperature", "0", "--max-tokens", "8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(lines.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends at the end of its input");
    assert!(output.status.success(), "{output:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

#[test]
fn a_chat_answers_keeps_the_talk_and_counts() {
    let cluster = Cluster::loopback(&tiny("llama-f32"), "2,3");
    let alone = cluster.text("one", &json!({"max_tokens": 8}));
    let home = &cluster.homes[0];
    let (first, _) = chat(home, &cluster.url, "one\n");
    assert!(first.contains(alone.trim_end()), "{first:?} holds {alone:?}");
    let (_, said) =
        chat(home, &cluster.url, "one\ntwo\n/stats\n/reset\n/nonsense\n/quit\nnot asked\n");
    assert!(said.contains("all 2 answers"), "{said}");
    assert!(said.contains("tok/s") && said.contains("anew") && said.contains("/help"), "{said}");
    // The second prompt holds the first question and answer.
    let line = said.lines().find(|line| line.contains("last answer")).expect("stats");
    let prompt: u32 = line.split(' ').nth(2).expect("a count").parse().expect("a number");
    let one = cluster.ask("one", &json!({"max_tokens": 8}));
    assert!(u64::from(prompt) > one["usage"]["prompt_tokens"].as_u64().expect("a number") + 8);
}

#[test]
fn a_chat_without_an_endpoint_says_what_to_start() {
    let output = Home::new("alone")
        .daisy(&["chat", "--url", "http://127.0.0.1:1/v1"])
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("127.0.0.1:1") && said.contains("daisy cluster serve"), "{said}");
}

#[test]
fn logs_of_this_node_and_of_others_hold_what_ranks_said() {
    let cluster = Cluster::loopback(&tiny("llama-f32"), "2,3");
    cluster.text("hello", &json!({"max_tokens": 4}));
    let logs = |args: &[&str]| {
        let output = cluster.homes[0].daisy(args).output().expect("the binary runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, own, _) = logs(&["cluster", "logs"]);
    assert_eq!(code, Some(0));
    assert!(own.contains("request finished"), "{own}");
    assert!(!own.contains("hello"), "no prompt is logged: {own}");
    let (code, last, _) = logs(&["cluster", "logs", "-n", "1"]);
    assert_eq!((code, last.lines().count()), (Some(0), 1));
    let addr = cluster.nodes[1].line("is up");
    let addr = addr.rsplit(' ').next().expect("an address");
    let (code, theirs, said) = logs(&["cluster", "logs", addr]);
    assert_eq!(code, Some(0), "{said}");
    assert!(theirs.contains("a node connected"), "{theirs}");
    let (code, _, said) = logs(&["cluster", "logs", "nobody"]);
    assert_eq!(code, Some(3));
    assert!(said.contains("`nobody`") && said.contains("--peer"), "{said}");
}

#[test]
fn a_running_node_is_found_from_any_environment_and_leaves_no_socket() {
    let _turn = turn();
    let home = Home::new("alone");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let mut node = home.up("127.0.0.1:0");
    node.line("is up");
    for runtime in [Some(elsewhere.path()), None] {
        let mut status = home.daisy(&["cluster", "status"]);
        match runtime {
            Some(dir) => status.env("XDG_RUNTIME_DIR", dir),
            None => status.env_remove("XDG_RUNTIME_DIR"),
        };
        assert!(status.output().expect("runs").status.success(), "{runtime:?}");
    }
    let model = tiny("llama-f32");
    for flag in [["--listen", "127.0.0.1:0"], ["--name", "other"]] {
        let args = [&["cluster", "serve", "--model", &model, "--port", "0"], &flag[..]].concat();
        let refused = home.daisy(&args).output().expect("runs");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(flag[0]) && said.contains("daisy cluster down"), "{said}");
    }
    let down = home.daisy(&["cluster", "down"]).output().expect("runs");
    assert!(down.status.success(), "{down:?}");
    assert_eq!(node.exit_code(), Some(0));
    assert!(!home.path().join("node.sock").exists());
    let again = home.daisy(&["cluster", "down"]).output().expect("runs");
    assert_eq!(again.status.code(), Some(3), "{again:?}");
}

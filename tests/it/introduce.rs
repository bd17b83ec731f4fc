//! `daisy cluster introduce`, the other end of pairing over SSH, spoken to through its pipes: what it
//! keeps, and that it keeps nothing before it is told to.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

struct Other {
    home: TempDir,
    child: Child,
    out: Option<BufReader<std::process::ChildStdout>>,
}

impl Other {
    fn start(home: TempDir) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_daisy"))
            .args(["cluster", "introduce"])
            .env("DAISY_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let out = child.stdout.take().map(BufReader::new);
        Self { home, child, out }
    }

    fn new() -> Self {
        Self::start(tempfile::tempdir().expect("a folder"))
    }

    /// It may be gone already.
    fn say(&mut self, line: &str) {
        let _ = self.child.stdin.as_mut().expect("piped").write_all(format!("{line}\n").as_bytes());
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.out.as_mut().expect("piped").read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Says no more; gives the exit code, what it told of faults, and whom it knows.
    fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let code = self.child.wait().expect("ended").code();
        let peers = fs::read_to_string(self.home.path().join("peers.toml")).unwrap_or_default();
        (code, said, peers)
    }
}

fn introduction(id: &str) -> String {
    let node = json!({"protocol": 1, "build": "daisy 7", "id": id, "name": "studio", "port": null});
    json!({"introduction": node}).to_string()
}

fn id() -> String {
    "a".repeat(52)
}

#[test]
fn a_node_is_kept_when_it_is_told_to_and_not_before() {
    let mut other = Other::new();
    other.say(&introduction(&id()));
    let own = &other.hear()["introduction"];
    assert_eq!(own["id"].as_str().map(str::len), Some(52), "{own}");
    assert!(!other.home.path().join("peers.toml").exists());
    other.say("\"keep\"");
    assert_eq!(other.hear(), "kept");
    let (code, said, peers) = other.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(peers.contains(&id()) && peers.contains("studio"), "{peers}");
}

#[test]
fn a_pairing_that_ends_early_keeps_nothing() {
    let mut other = Other::new();
    other.say(&introduction(&id()));
    other.hear();
    let (code, said, peers) = other.end();
    assert_eq!((code, peers.as_str()), (Some(1), ""), "{said}");
    // When it cannot say that it kept it, it does not.
    let mut other = Other::new();
    other.say(&introduction(&id()));
    other.hear();
    drop(other.out.take());
    other.say("\"keep\"");
    let (code, _, peers) = other.end();
    assert!(code == Some(1) && !peers.contains(&id()), "{peers}");
}

#[test]
fn what_is_no_introduction_is_refused_with_a_reason() {
    let own = {
        let mut other = Other::new();
        other.say(&introduction(&id()));
        let own = other.hear()["introduction"]["id"].as_str().expect("an id").to_owned();
        (other.home, own)
    };
    let mut other = Other::start(own.0);
    other.say(&introduction(&own.1));
    let refused = other.hear();
    assert!(refused["refused"]["message"].as_str().expect("text").contains("own key"), "{refused}");
    assert_eq!(other.end().0, Some(1));
    let huge = format!("{}{}", introduction(&id()), " ".repeat(5000));
    let newer = introduction(&id()).replace("\"protocol\":1", "\"protocol\":2");
    for (line, word) in [
        ("nonsense", "no introduction"),
        ("\"keep\"", "out of turn"),
        (&huge, "no introduction"),
        (&newer, "cannot work together"),
        (&introduction("abc"), "node id"),
        ("", "no introduction"),
    ] {
        let mut other = Other::new();
        other.say(line);
        let refused = other.hear();
        let message = refused["refused"]["message"].as_str().expect("text");
        assert!(message.contains(word), "{line}: {message}");
        let (code, said, peers) = other.end();
        assert_eq!((code, peers.as_str()), (Some(1), ""), "{said}");
    }
}

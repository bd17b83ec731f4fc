//! The real binary's answers to bad input: exit code, and a message that names the fault and the
//! remedy.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn daisy(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_daisy"))
            .args(args)
            .env("DAISY_HOME", self.0.path().join("home"))
            .env_remove("RUST_BACKTRACE")
            .output()
            .expect("the binary runs")
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs and checks the exit code; gives stderr.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.daisy(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "data only on success");
        stderr
    }
}

fn tiny(name: &str) -> String {
    format!("{}/tests/data/tiny/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn copy_dir(from: &str, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the checkpoint") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}

fn serve<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args =
        vec!["cluster", "serve", "--port", "0", "--listen", "127.0.0.1:0", "--model", model];
    args.extend(more);
    args
}

#[test]
fn an_id_is_made_once_and_kept() {
    let home = Home::new();
    let first = home.daisy(&["cluster", "id"]);
    assert!(first.status.success());
    assert_eq!(first.stdout.len(), 53, "52 letters and a line end");
    assert_eq!(home.daisy(&["cluster", "id"]).stdout, first.stdout);
}

#[test]
fn trust_wants_another_nodes_id() {
    let home = Home::new();
    let own = home.daisy(&["cluster", "id"]).stdout;
    let own = String::from_utf8(own).expect("text");
    assert!(home.fails(2, &["cluster", "trust", own.trim()]).contains("this node's own id"));
    let message = home.fails(2, &["cluster", "trust", "nonsense"]);
    assert!(message.contains("`nonsense` is not a node id"), "{message}");
}

#[test]
fn pairing_wants_a_node_and_names_that_could_be_options_are_refused() {
    let home = Home::new();
    for args in
        [&["pair"][..], &["pair", "417-209"], &["invite"], &["join", "daisy-abc"], &["down"]]
    {
        let message = home.fails(3, &[&["cluster"], args].concat());
        assert!(message.contains("daisy cluster up"), "{args:?}: {message}");
    }
    let message = home.fails(1, &["cluster", "unpair", "nobody"]);
    assert!(message.contains("\"nobody\"") && message.contains("peers"), "{message}");
    let other = "a".repeat(52);
    for args in [
        vec!["cluster", "up", "--listen", "127.0.0.1:0", "--name=-x"],
        vec!["cluster", "up", "--listen", "127.0.0.1:0", "--name", "a\u{1b}[2J"],
        vec!["cluster", "trust", &other, "--name=--home"],
    ] {
        let message = home.fails(2, &args);
        assert!(message.contains("not usable as a node's name"), "{args:?}: {message}");
        assert!(!message.contains('\u{1b}'), "{message:?}");
    }
    let message = home.fails(2, &["cluster", "invite", "--ttl", "soon"]);
    assert!(message.contains("--ttl soon"), "{message}");
}

#[test]
fn a_reset_home_has_another_id() {
    let home = Home::new();
    let before = home.daisy(&["cluster", "id"]).stdout;
    let reset = home.daisy(&["cluster", "reset-identity"]);
    assert!(reset.status.success());
    assert_ne!(before, reset.stdout);
    assert_eq!(home.daisy(&["cluster", "id"]).stdout, reset.stdout);
}

#[test]
fn a_rank_is_not_for_people() {
    let message = Home::new().fails(1, &["rank"]);
    assert!(message.contains("daisy cluster up"), "{message}");
}

#[test]
fn without_a_node_status_says_so_with_its_own_code() {
    let message = Home::new().fails(3, &["cluster", "status"]);
    assert!(message.contains("daisy cluster up"), "{message}");
}

#[test]
fn the_doctor_needs_no_node_and_its_report_holds_no_key() {
    let home = Home::new();
    assert!(home.daisy(&["cluster", "id"]).status.success());
    let key = fs::read(home.path().join("home/key")).expect("a key");
    let report = home.path().join("report.txt");
    let file = report.to_str().expect("utf-8");
    let output = home.daisy(&["doctor", "--report", file]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no node runs here"), "{output:?}");
    let text = fs::read(&report).expect("a report");
    assert!(text.starts_with(b"daisy "));
    assert!(!text.windows(16).any(|part| key.windows(16).any(|of_key| of_key == part)));
    let again = home.fails(1, &["doctor", "--report", file]);
    assert!(again.contains("cannot write") && again.contains("report.txt"), "{again}");
}

#[test]
fn bad_flags_of_serve_are_refused_before_anything_starts() {
    let home = Home::new();
    let model = tiny("llama-f32");
    for (args, code, expected) in [
        (serve("/no/such/model", &[]), 2, "--model /no/such/model"),
        (serve(&model, &["--peer", "a b"]), 2, "--peer a b"),
        (serve(&model, &["--layers", "1,1"]), 2, "--layers 1,1 adds up to 2 layers"),
        (serve(&model, &["--nodes", "3"]), 2, "--peer"),
        (serve(&model, &["--nodes", "mini"]), 2, "no node named `mini` answers"),
        (serve(&model, &["--exclude", "mini"]), 2, "no node named `mini` answers"),
        (serve(&model, &["--nodes", "1", "--layers", "2,3"]), 2, "does not go with it"),
        (serve(&model, &["--memory-limit", "12"]), 2, "write it as 12GiB"),
        (serve(&model, &["--context", "100000000"]), 2, "--context 100000000"),
        (serve(&model, &["--context", "0"]), 2, "--context"),
        (serve(&model, &["--host", "192.0.2.7"]), 1, "192.0.2.7"),
    ] {
        let message = home.fails(code, &args);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    type Damage = fn(&Path);
    let cases: &[(&str, Damage, &str)] = &[
        ("no config", |dir| fs::remove_file(dir.join("config.json")).expect("gone"), "config.json"),
        (
            "an unsupported architecture",
            |dir| edit(dir, "\"model_type\": \"llama\"", "\"model_type\": \"mamba\""),
            "mamba",
        ),
        (
            "nonsense",
            |dir| fs::write(dir.join("config.json"), "{").expect("written"),
            "config.json",
        ),
        (
            "a truncated file",
            |dir| {
                let path = dir.join("model.safetensors");
                let bytes = fs::read(&path).expect("weights");
                fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
            },
            "model.safetensors",
        ),
        (
            "no tokenizer",
            |dir| fs::remove_file(dir.join("tokenizer.json")).expect("gone"),
            "tokenizer.json",
        ),
    ];
    let home = Home::new();
    for (what, damage, expected) in cases {
        let dir = home.path().join(what.replace(' ', "-"));
        copy_dir(&tiny("llama-f32"), &dir);
        damage(&dir);
        let message = home.fails(1, &serve(dir.to_str().expect("utf-8"), &[]));
        assert!(message.contains(expected), "{what}: {message}");
        assert!(!message.contains("panicked"), "{what}: {message}");
    }
}

fn edit(dir: &Path, from: &str, to: &str) {
    let path = dir.join("config.json");
    let text = fs::read_to_string(&path).expect("config");
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replace(from, to)).expect("written");
}

#[test]
fn a_taken_port_is_named_with_the_remedy() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let model = tiny("llama-f32");
    let args = ["cluster", "serve", "--listen", "127.0.0.1:0", "--model", &model, "--port", &port];
    let message = home.fails(1, &args);
    assert!(message.contains(&port) && message.contains("--port"), "{message}");
}

#[test]
fn an_unreachable_peer_is_named_and_has_its_own_code() {
    let home = Home::new();
    // A UDP socket that never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let addr = silent.local_addr().expect("an address").to_string();
    let message = home.fails(3, &serve(&tiny("llama-f32"), &["--peer", &addr]));
    assert!(message.contains(&addr), "{message}");
}

#[test]
fn import_refuses_what_is_no_gguf() {
    let home = Home::new();
    let file = home.path().join("x.gguf");
    fs::write(&file, b"not a model").expect("written");
    let message = home.fails(1, &["model", "import", file.to_str().expect("utf-8")]);
    assert!(message.contains("x.gguf"), "{message}");
    let message = home.fails(1, &["model", "import", "/no/such.gguf"]);
    assert!(message.contains("/no/such.gguf"), "{message}");
}

#[test]
fn a_model_is_looked_for_in_the_cache_that_the_environment_names() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let home = Home::new();
    let repo = home.path().join("hf/hub/models--org--tiny");
    copy_dir(&tiny("llama-f32"), &repo.join("snapshots").join(COMMIT));
    fs::create_dir_all(repo.join("refs")).expect("a folder");
    fs::write(repo.join("refs/main"), COMMIT).expect("written");
    let facts = home.path().join("facts.json");
    fs::write(&facts, r#"{"nodes": [{"name": "mini", "memory_gib": 16, "chip": "Apple M4"}]}"#)
        .expect("written");
    let ask = |model: &str| {
        let facts = facts.to_string_lossy();
        Command::new(env!("CARGO_BIN_EXE_daisy"))
            .args(["cluster", "plan", "--model", model, "--facts", &facts])
            .env("DAISY_HOME", home.path().join("home"))
            .env("HF_HOME", home.path().join("hf"))
            .env_remove("HF_HUB_CACHE")
            .output()
            .expect("the binary runs")
    };
    for found in ["org/tiny", "org/tiny@main", &format!("org/tiny@{COMMIT}")] {
        let output = ask(found);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.starts_with("org/tiny on 1 rank"), "{found}: {said} {output:?}");
    }
    for gone in ["org/other", "org/tiny@v9"] {
        let output = ask(gone);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{gone}: {said}");
        assert!(said.contains("is not in the Hugging Face cache at"), "{gone}: {said}");
        assert!(said.contains("hf download org/"), "{gone}: {said}");
    }
}

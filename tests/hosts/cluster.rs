//! Nodes of a test: homes, processes, their output, and a small HTTP client.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A process may start slowly on a busy machine, but not this slowly.
pub const PATIENCE: Duration = Duration::from_mins(2);

static TURN: Mutex<()> = Mutex::new(());

/// Held by whoever runs nodes.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's folder and name.
pub struct Home {
    dir: TempDir,
    pub name: String,
    /// Prefix of every command: `ip netns exec …` for a node elsewhere.
    within: Vec<String>,
    /// Kinds that its interfaces shall have.
    interfaces: String,
    /// The most memory that its node may use.
    memory_limit: Option<String>,
}

impl Home {
    pub fn new(name: &str) -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            name: name.to_owned(),
            within: Vec::new(),
            interfaces: String::new(),
            memory_limit: None,
        }
    }

    pub fn within(mut self, namespace: &str) -> Self {
        self.within = ["ip", "netns", "exec", namespace].map(str::to_owned).to_vec();
        self
    }

    /// As `DAISY_INTERFACES` has it.
    pub fn with_interfaces(mut self, kinds: &str) -> Self {
        kinds.clone_into(&mut self.interfaces);
        self
    }

    pub fn with_memory_limit(mut self, limit: &str) -> Self {
        self.memory_limit = Some(limit.to_owned());
        self
    }

    pub fn daisy(&self, args: &[&str]) -> Command {
        let binary = env!("CARGO_BIN_EXE_daisy");
        let mut command = match self.within.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        command.args(args).env("DAISY_HOME", self.dir.path()).env("DAISY_LOG", "daisy=info");
        command.env("DAISY_INTERFACES", &self.interfaces);
        command
    }

    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn id(&self) -> String {
        let output = self.daisy(&["cluster", "id"]).output().expect("the binary runs");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    pub fn trust(&self, other: &Self) {
        let status = self.daisy(&["cluster", "trust", &other.id()]).output().expect("runs").status;
        assert!(status.success());
    }

    pub fn up(&self, listen: &str) -> Process {
        let mut args = vec!["cluster", "up", "--name", &self.name, "--listen", listen];
        args.extend(self.memory_limit.iter().flat_map(|limit| ["--memory-limit", limit]));
        Process::spawn(self.daisy(&args))
    }

    /// Serves a model by a node within the command.
    pub fn serve(&self, model: &str, more: &[&str]) -> Command {
        let own = ["--listen", "127.0.0.1:0", "--name", &self.name];
        let serve = ["cluster", "serve", "--model", model, "--port", "0"];
        self.daisy(&[&serve[..], &own, more].concat())
    }

    pub fn status(&self) -> String {
        let output = self.daisy(&["cluster", "status"]).output().expect("the binary runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// A running process and all that it has said so far. Killed when dropped.
pub struct Process {
    pub child: Child,
    said: Arc<(Mutex<Said>, Condvar)>,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    open: usize,
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let said = Arc::new((Mutex::new(Said { lines: Vec::new(), open: 2 }), Condvar::new()));
        collect(child.stdout.take().expect("piped"), &said);
        collect(child.stderr.take().expect("piped"), &said);
        Self { child, said }
    }

    /// Waits for a line that holds `text` and gives it.
    pub fn line(&self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        let (said, changed) = &*self.said;
        let mut said = lock(said);
        loop {
            if let Some(line) = said.lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && said.open > 0,
                "no line holds `{text}` in:\n{}",
                said.lines.join("\n")
            );
            said = changed.wait_timeout(said, left).expect("not poisoned").0;
        }
    }

    pub fn output(&self) -> String {
        lock(&self.said.0).lines.join("\n")
    }

    pub fn signal(&self, signal: &str) {
        kill(self.child.id(), signal);
    }

    /// Waits for the end and gives the exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        let (said, changed) = &*self.said;
        let mut guard = lock(said);
        while guard.open > 0 {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not end:\n{}", guard.lines.join("\n"));
            guard = changed.wait_timeout(guard, left).expect("not poisoned").0;
        }
        drop(guard);
        self.child.wait().expect("ended").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("--- output of process {}\n{}", self.child.id(), self.output());
        }
    }
}

fn collect(stream: impl Read + Send + 'static, said: &Arc<(Mutex<Said>, Condvar)>) {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            lock(&said.0).lines.push(line);
            said.1.notify_all();
        }
        lock(&said.0).open -= 1;
        said.1.notify_all();
    });
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(status.expect("kill runs").success(), "no process {pid}");
}

pub fn alive(pid: u32) -> bool {
    // A zombie that nobody has waited for yet is gone too.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z')
    })
}

pub fn await_gone(pid: u32) {
    let until = Instant::now() + Duration::from_secs(15);
    while alive(pid) {
        assert!(Instant::now() < until, "process {pid} is still there");
        std::thread::yield_now();
    }
}

/// Nodes that trust one another, and a model served over all of them.
pub struct Cluster {
    pub serve: Process,
    pub nodes: Vec<Process>,
    pub homes: Vec<Home>,
    /// Of the ranks, in order.
    pub pids: Vec<u32>,
    pub url: String,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// One node per entry of `layers`, all on loopback.
    pub fn loopback(model: &str, layers: &str) -> Self {
        let world = layers.split(',').count();
        let nodes = (0..world).map(|k| (Home::new(&format!("node{k}")), "127.0.0.1:0".to_owned()));
        Self::start(nodes.collect(), model, &["--layers", layers])
    }

    /// The first home drives; each listens at its address.
    pub fn start(nodes: Vec<(Home, String)>, model: &str, more: &[&str]) -> Self {
        let ready = Ready::new(nodes);
        let serve = ready.serve(model, more);
        // The lines about ranks are on stderr, the address on stdout: neither waits for the other.
        serve.line("is ready, context");
        let line = serve.line("OpenAI endpoint");
        let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
        let url = url.to_owned();
        let pids = pids(&serve.output());
        let Ready { nodes, homes, turn, .. } = ready;
        Self { serve, nodes, homes, pids, url, _turn: turn }
    }

    pub fn ask(&self, question: &str, more: &Value) -> Value {
        let (status, body) = post(&self.url, &body(question, more));
        assert_eq!(status, 200, "{body}");
        body
    }

    pub fn text(&self, question: &str, more: &Value) -> String {
        let answer = self.ask(question, more);
        answer["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
    }
}

/// Nodes that trust one another and run; nothing is served yet.
pub struct Ready {
    pub nodes: Vec<Process>,
    pub homes: Vec<Home>,
    /// Of every node but the first.
    peers: Vec<String>,
    turn: MutexGuard<'static, ()>,
}

impl Ready {
    /// The first home drives; each listens at its address.
    pub fn new(nodes: Vec<(Home, String)>) -> Self {
        let turn = turn();
        for (home, _) in &nodes {
            for (other, _) in nodes.iter().filter(|(other, _)| other.name != home.name) {
                home.trust(other);
            }
        }
        let (mut homes, mut processes, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for (home, listen) in nodes {
            let process = home.up(&listen);
            let line = process.line("is up");
            peers.push(line.rsplit(' ').next().expect("an address").to_owned());
            homes.push(home);
            processes.push(process);
        }
        Self { nodes: processes, homes, peers: peers.split_off(1), turn }
    }

    /// Where the others are reached, if not where they say that they listen.
    pub fn reached_at(mut self, peers: &[&str]) -> Self {
        self.peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
        self
    }

    pub fn serve(&self, model: &str, more: &[&str]) -> Process {
        let mut args = vec!["cluster", "serve", "--model", model, "--port", "0"];
        for peer in &self.peers {
            args.extend(["--peer", peer]);
        }
        args.extend(more);
        Process::spawn(self.homes[0].daisy(&args))
    }
}

/// A tiny checkpoint with a long context and without an end token: its answers end by number.
pub struct Endless(TempDir);

impl Endless {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(tiny("llama-f32")).expect("the checkpoint") {
            let path = entry.expect("an entry").path();
            std::fs::copy(&path, dir.path().join(path.file_name().expect("a name")))
                .expect("copied");
        }
        let edit = |name: &str, change: &dyn Fn(&mut Value)| {
            let path = dir.path().join(name);
            let text = std::fs::read_to_string(&path).expect("a file");
            let mut value = serde_json::from_str(&text).expect("JSON");
            change(&mut value);
            std::fs::write(&path, value.to_string()).expect("written");
        };
        edit("config.json", &|config| {
            config["max_position_embeddings"] = json!(32768);
            config["eos_token_id"] = json!([]);
        });
        edit("generation_config.json", &|config| config["eos_token_id"] = json!([]));
        edit("tokenizer_config.json", &|config| config["eos_token"] = Value::Null);
        Self(dir)
    }

    /// Elements of a hidden state.
    pub fn hidden(&self) -> u64 {
        let text = std::fs::read_to_string(self.0.path().join("config.json")).expect("a config");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        config["hidden_size"].as_u64().expect("a number")
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().expect("utf-8")
    }
}

/// The pids that `serve` shows, in rank order.
pub fn pids(output: &str) -> Vec<u32> {
    let lines = output.lines().filter_map(|line| line.split_once("] pid "));
    let pid =
        |(_, rest): (&str, &str)| rest.split(' ').next().expect("a pid").parse().expect("a number");
    lines.map(pid).collect()
}

pub fn body(question: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
    });
    let fields = body.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    body
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build()
        .into()
}

pub fn post(url: &str, body: &Value) -> (u16, Value) {
    let mut answer =
        agent().post(format!("{url}/chat/completions")).send_json(body).expect("an answer");
    (answer.status().as_u16(), answer.body_mut().read_json().expect("JSON"))
}

pub fn get(url: &str) -> (u16, String) {
    let mut answer = agent().get(url).call().expect("an answer");
    (answer.status().as_u16(), answer.body_mut().read_to_string().expect("text"))
}

/// A streamed answer that is still coming.
pub struct Stream(BufReader<Box<dyn Read + Send>>);

impl Stream {
    pub fn open(url: &str, body: &Value) -> Self {
        let answer =
            agent().post(format!("{url}/chat/completions")).send_json(body).expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
        Self(BufReader::new(Box::new(answer.into_body().into_reader())))
    }

    /// The next event's data; none at the end of the stream.
    pub fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).expect("a stream that ends in order") == 0 {
                return None;
            }
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
        }
    }

    /// The text of the rest of the stream, which must end well.
    pub fn text(mut self) -> String {
        let mut text = String::new();
        loop {
            let event = self.event().expect("[DONE] comes last");
            if event == "[DONE]" {
                assert_eq!(self.event(), None);
                return text;
            }
            text.push_str(&delta(&event));
        }
    }
}

/// The text that an event brings.
pub fn delta(event: &str) -> String {
    let event: Value = serde_json::from_str(event).expect("JSON");
    assert!(event["error"].is_null(), "{event}");
    event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
}

pub fn tiny(name: &str) -> String {
    format!("{}/tests/data/tiny/{name}", env!("CARGO_MANIFEST_DIR"))
}

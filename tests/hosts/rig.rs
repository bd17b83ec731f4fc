//! Machines for tests: network namespaces, cables between them, and nodes that run there.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::{Home, turn};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Two machines and a cable, and nothing else: no other interface, no route, no DNS, no DHCP.
pub struct Cable {
    pub a: Machine,
    pub b: Machine,
    _turn: MutexGuard<'static, ()>,
}

/// A machine; gone when dropped.
pub struct Machine {
    pub namespace: String,
    /// Its end of the cable.
    pub device: String,
    pub link_local: String,
}

impl Cable {
    /// The error says why this machine has no namespaces.
    pub fn new() -> Result<Self, String> {
        let turn = turn();
        let [a, b] = machines()?;
        let cable = Self { a, b, _turn: turn };
        let (a, b) = (&cable.a, &cable.b);
        ip(&format!(
            "link add {} netns {} type veth peer name {} netns {}",
            a.device, a.namespace, b.device, b.namespace
        ))?;
        for machine in [a, b] {
            // An address of our own choice, at once: the kernel's would first be probed for a second.
            machine.ip(&format!("link set {} addrgenmode none", machine.device))?;
            machine.ip(&format!("link set {} up", machine.device))?;
            machine.add_address(&format!("{}/64", machine.link_local))?;
        }
        Ok(cable)
    }

    /// A node's home on each machine.
    pub fn homes(&self) -> (Home, Home) {
        let home = |name: &str, machine: &Machine| Home::new(name).within(&machine.namespace);
        (home("alpha", &self.a), home("beta", &self.b))
    }
}

/// As many as are wanted; nothing joins them yet.
pub fn machines<const N: usize>() -> Result<[Machine; N], String> {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let machine = |end: char| {
        let machine = Machine {
            namespace: format!("daisy-{}-{number}{end}", std::process::id()),
            device: format!("cable{end}"),
            link_local: format!("fe80::{end}"),
        };
        ip(&format!("netns add {}", machine.namespace))?;
        machine.ip("link set lo up")?;
        Ok::<_, String>(machine)
    };
    let made = ('a'..='f').take(N).map(machine).collect::<Result<Vec<_>, String>>()?;
    made.try_into().map_err(|_| format!("a rig has no {N} machines"))
}

impl Machine {
    /// Sent and received by one of its devices.
    pub fn bytes(&self, device: &str) -> u64 {
        let output = Command::new("ip")
            .args(["-n", &self.namespace, "-j", "-s", "link", "show", device])
            .output()
            .expect("ip runs");
        let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let of = |way: &str| shown[0]["stats64"][way]["bytes"].as_u64().expect("a number");
        of("rx") + of("tx")
    }

    pub fn ip(&self, args: &str) -> Result<(), String> {
        ip(&format!("-n {} {args}", self.namespace))
    }

    pub fn add_address(&self, addr: &str) -> Result<(), String> {
        let nodad = if addr.contains(':') { " nodad" } else { "" };
        self.ip(&format!("addr add {addr} dev {}{nodad}", self.device))
    }

    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new("ip")
            .args(["netns", "exec", &self.namespace, program])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("it runs")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Takes the cable with it.
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

/// Runs `ip` with these words.
pub fn ip(args: &str) -> Result<(), String> {
    let output = Command::new("ip").args(args.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip {args}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {args}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// What `daisy cluster peers --json` says at `home`.
pub fn peers(home: &Home) -> Value {
    let output = home.daisy(&["cluster", "peers", "--json"]).output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The state of the peer of that name, or "absent".
pub fn state(home: &Home, name: &str) -> String {
    let view = peers(home);
    let row = view["peers"].as_array().expect("rows").iter().find(|row| row["name"] == name);
    row.map_or("absent", |row| row["state"].as_str().expect("a word")).to_owned()
}

/// Waits until the peer of that name is in that state, and gives how long it took.
pub fn await_state(home: &Home, name: &str, wanted: &str, at_most: Duration) -> Duration {
    let since = Instant::now();
    loop {
        let now = state(home, name);
        let after = since.elapsed();
        if now == wanted {
            return after;
        }
        assert!(after < at_most, "{name} is {now}, not {wanted}, after {after:?}: {}", peers(home));
        std::thread::yield_now();
    }
}

/// Pairs two running nodes by code, as two people would.
pub fn pair(shows: &Home, enters: &Home) {
    let window = super::cluster::Process::spawn(shows.daisy(&["cluster", "pair"]));
    let line = window.line("daisy cluster pair");
    let code = line.rsplit(' ').next().expect("a code");
    let entered = enters.daisy(&["cluster", "pair", code]).output().expect("the binary runs");
    assert!(entered.status.success(), "{entered:?}");
    window.line(&format!("paired with {}", enters.name));
}

/// Types one line into a chat at `url`, on the machine of `home`.
pub fn chat(home: &Home, url: &str, tokens: &str) -> Child {
    let args = ["chat", "--url", url, "--temperature", "0", "--max-tokens", tokens];
    let mut command = home.daisy(&args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("starts");
    child.stdin.as_mut().expect("piped").write_all(b"hello\n").expect("written");
    child
}

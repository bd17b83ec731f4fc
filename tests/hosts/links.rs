//! Two machines with a fast and a slow link at once: which one hidden states take, and when none will do.
//!
//! Both are network namespaces, so that nothing else on this machine comes or goes there. "Thunderbolt" is
//! a bridge with a veth pair in it, as a Mac's bridge has its ports; "Wi-Fi" is a cable of our own between
//! two TUN devices, with its delay and rate.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cable::Cable;
use super::cluster::{Endless, Home, PATIENCE, Process, Ready};
use super::rig::{Machine, chat, ip, machines, peers};
use super::skip;

/// Two machines and both links between them; gone when dropped.
pub struct Rig {
    pub near: Machine,
    pub far: Machine,
    /// Keeps the TUN devices.
    devices: Child,
    slow_is: &'static str,
}

impl Rig {
    /// The error says why this machine has no namespaces or no TUN devices.
    pub fn new(slow: Cable) -> Result<Self, String> {
        let [near, far] = machines()?;
        ip(&format!(
            "link add port netns {} type veth peer name port netns {}",
            near.namespace, far.namespace
        ))?;
        for (machine, end) in [(&near, 1), (&far, 2)] {
            machine.ip(&format!("link add {FAST} type bridge"))?;
            machine.ip(&format!("link set port master {FAST}"))?;
            machine.ip("link set port up")?;
            machine.ip(&format!("link set {FAST} up"))?;
            machine.ip(&format!("addr add {FAST_NET}.{end}/24 dev {FAST}"))?;
        }
        let devices = wireless(&near, &far, slow)?;
        for (machine, end) in [(&near, 1), (&far, 2)] {
            machine.ip(&format!("addr add {SLOW_NET}.{end}/24 dev {SLOW}"))?;
            machine.ip(&format!("link set {SLOW} up"))?;
        }
        Ok(Self { near, far, devices, slow_is: "wifi" })
    }

    /// Both nodes, which know each other by the fast link.
    pub fn nodes(&self) -> Ready {
        let listen = format!("0.0.0.0:{PORT}");
        let kinds = format!("{FAST}=thunderbolt,{SLOW}={}", self.slow_is);
        let home = |name: &str, machine: &Machine| {
            Home::new(name).within(&machine.namespace).with_interfaces(&kinds)
        };
        let nodes =
            vec![(home("near", &self.near), listen.clone()), (home("far", &self.far), listen)];
        Ready::new(nodes).reached_at(&[&format!("{FAST_NET}.2:{PORT}")])
    }

    /// What stands for Wi-Fi is something else.
    fn with_slow_as(mut self, kind: &'static str) -> Self {
        self.slow_is = kind;
        self
    }

    /// Waits for counts of both links.
    pub fn until(&self, what: &str, is_so: impl Fn((u64, u64)) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self.bytes()) {
            assert!(Instant::now() < until, "{what}: {:?}", self.bytes());
        }
    }

    /// Sent and received by the near end, on the fast and on the slow link.
    pub fn bytes(&self) -> (u64, u64) {
        (self.near.bytes("port"), self.near.bytes(SLOW))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.devices.kill();
        let _ = self.devices.wait();
    }
}

/// Joins the two by a cable of our own. The process that it gives keeps the devices.
fn wireless(near: &Machine, far: &Machine, cable: Cable) -> Result<Child, String> {
    let script = format!("{}/scripts/lib/tun.py", env!("CARGO_MANIFEST_DIR"));
    let mut devices = Command::new("python3")
        .args([&script, SLOW, &near.namespace, &far.namespace])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("python3: {error}"))?;
    let mut line = String::new();
    let stdout = devices.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    let numbers = line.split_whitespace();
    let fds: Vec<i32> = numbers.filter_map(|number| number.parse().ok()).collect();
    let [near, far] = fds[..] else { return Err("no TUN devices".to_owned()) };
    let taken = |fd| take(devices.id(), fd).map_err(|error| format!("pidfd_getfd: {error}"));
    cable.join(taken(near)?, taken(far)?).map_err(|error| error.to_string())?;
    Ok(devices)
}

/// A descriptor of another process.
#[cfg(target_os = "linux")]
fn take(pid: u32, fd: i32) -> std::io::Result<File> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(File::from(pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?))
}

#[cfg(not(target_os = "linux"))]
fn take(_: u32, _: i32) -> std::io::Result<File> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// One test for all, since the rig and the load take longer than the questions.
#[test]
fn hidden_states_take_the_fast_link_and_a_slow_one_is_refused() {
    let rig = match Rig::new(wifi()) {
        Ok(rig) => rig,
        Err(why) => skip!("links", why),
    };
    let model = Endless::new();
    let ready = rig.nodes();
    let tokens: u32 = 120;

    let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
    let url = endpoint(&serve);
    let (fast, slow) = rig.bytes();
    answer(chat(&ready.homes[0], &url, &tokens.to_string()));
    let (fast, slow) = (rig.bytes().0 - fast, rig.bytes().1 - slow);
    println!("{fast} bytes on the fast link, {slow} on the slow one");
    both_ends_show_the_same_link(&ready);
    let hidden_bytes = model.hidden() * 4;
    let least = u64::from(tokens) * hidden_bytes * 2;
    assert!(fast >= least, "{fast} bytes on the fast link, at least {least} are hidden states");
    assert!(slow * 100 < fast, "{slow} bytes on the slow link, {fast} on the fast one");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));

    let without_fast = ["--layers", "2,3", "--exclude-interface", FAST];
    let mut serve = ready.serve(model.path(), &without_fast);
    assert_eq!(serve.exit_code(), Some(1));
    let said = serve.output();
    for part in [
        "the link between `near` and `far` cannot carry a model: it is Wi-Fi",
        &format!("{SLOW} - {SLOW}"),
        "hint: a fast one is there, but --interface or --exclude-interface rules",
        "hint: `--link any` uses it all the same, for about",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }

    let mut any = without_fast.to_vec();
    any.extend(["--link", "any"]);
    let mut serve = ready.serve(model.path(), &any);
    let url = endpoint(&serve);
    serve.line("note: the links cost about");
    let (_, slow) = rig.bytes();
    answer(chat(&ready.homes[0], &url, "8"));
    let slow = rig.bytes().1 - slow;
    assert!(slow >= 8 * hidden_bytes * 2, "{slow} bytes on the link that was asked for");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

/// A cable with another one beside it: what is under way goes on when the better one is pulled, though
/// the nodes' own connections went over it too.
#[test]
fn an_answer_goes_on_when_its_cable_is_pulled_and_another_is_there() {
    let wire = Cable { delay: Duration::from_micros(300), bit_per_s: None, lost_per_million: 0 };
    let rig = match Rig::new(wire) {
        Ok(rig) => rig.with_slow_as("ethernet"),
        Err(why) => skip!("a pulled cable", why),
    };
    let model = Endless::new();
    let ready = rig.nodes();
    let tokens = "1500";
    let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
    let url = endpoint(&serve);
    let undisturbed = answer(chat(&ready.homes[0], &url, tokens));
    let (_, slow) = rig.bytes();

    let disturbed = chat(&ready.homes[0], &url, tokens);
    let begins = rig.bytes().0;
    rig.until("the answer has begun", |(fast, _)| fast > begins + 50_000);
    rig.far.ip("link set port down").expect("pulled");
    for end in ["`near` to `far`", "`far` to `near`"] {
        let said = serve.line(&format!("hidden states from {end} go over {SLOW} now"));
        assert!(said.contains("heard") || said.contains("hears"), "{said}");
    }
    assert_eq!(answer(disturbed), undisturbed, "not a token is lost or doubled");
    assert!(rig.bytes().1 > slow + 50_000, "it went over the other link");
    // The node was lost for a moment, and its rank was not.
    serve.line("the connection to `far` is back");
    answer(chat(&ready.homes[0], &url, "8"));
    assert!(!serve.output().contains("error:"), "{}", serve.output());
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

/// A cable is plugged in while a model is served over Wi-Fi, which was asked for.
#[test]
fn a_slow_link_is_left_when_a_cable_comes() {
    let rig = match Rig::new(wifi()) {
        Ok(rig) => rig,
        Err(why) => skip!("a plugged cable", why),
    };
    rig.far.ip("link set port down").expect("not plugged in");
    let model = Endless::new();
    let ready = rig.nodes().reached_at(&[&format!("{SLOW_NET}.2:{PORT}")]);
    let mut serve = ready.serve(model.path(), &["--layers", "2,3", "--link", "any"]);
    let url = endpoint(&serve);
    rig.far.ip("link set port up").expect("plugged in");
    for end in ["`near` to `far`", "`far` to `near`"] {
        let said = serve.line(&format!("hidden states from {end} go over {FAST} now"));
        assert!(said.contains("a better link"), "{said}");
    }
    serve.line("the link between `near` and `far` has changed");
    let (fast, _) = rig.bytes();
    answer(chat(&ready.homes[0], &url, "100"));
    assert!(rig.bytes().0 > fast + 100 * model.hidden() * 4 * 2, "it goes over the cable");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

/// As good as Wi-Fi gets.
pub fn wifi() -> Cable {
    Cable { delay: Duration::from_millis(4), bit_per_s: Some(100_000_000), lost_per_million: 0 }
}

/// What it says, whole.
pub fn answer(chat: Child) -> String {
    let asked = chat.wait_with_output().expect("ends");
    assert!(asked.status.success(), "{asked:?}");
    String::from_utf8(asked.stdout).expect("text")
}

/// What `daisy cluster peers` says of the other machine and of the link to it.
fn both_ends_show_the_same_link(ready: &Ready) {
    let rows = [0, 1].map(|end| peers(&ready.homes[end])["peers"][0].clone());
    for row in &rows {
        assert!(row["facts"]["memory_bytes"].as_u64() > Some(1 << 28), "{row}");
        assert!(
            row["facts"]["available_bytes"].is_u64() && row["facts"]["os"].is_string(),
            "{row}"
        );
        let link = &row["link"];
        let ends = (&link["interface"], &link["peer_interface"], &link["kind"]);
        assert_eq!(ends, (&FAST.into(), &FAST.into(), &"Thunderbolt".into()), "{row}");
        assert!(link["rtt_median_us"].as_u64() > Some(0), "{row}");
        assert!(link["bit_per_s"].as_u64() > Some(0), "{row}");
    }
    assert_eq!(rows[0]["link"], rows[1]["link"], "one record");
    let table = ready.homes[0].daisy(&["cluster", "peers"]).output().expect("runs").stdout;
    let table = String::from_utf8(table).expect("text");
    for part in ["CHIP", "AVAILABLE", &format!("{FAST} (Thunderbolt)"), " ms", "bit/s"] {
        assert!(table.contains(part), "no `{part}` in:\n{table}");
    }
    println!("{table}");
}

/// Where a model that is served answers.
pub fn endpoint(serve: &Process) -> String {
    serve.line("is ready, context");
    let line = serve.line("OpenAI endpoint");
    line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions").to_owned()
}

pub const FAST: &str = "thunder0";
pub const SLOW: &str = "wifi0";
pub const FAST_NET: &str = "10.213.11";
pub const SLOW_NET: &str = "10.213.12";
pub const PORT: u16 = 51_738;

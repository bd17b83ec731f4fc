//! Two machines with a fast and a slow link at once: which one hidden states take, and when none will do.
//!
//! The other machine is a network namespace. "Thunderbolt" is a bridge with a veth pair in it, as a Mac's
//! bridge has its ports; "Wi-Fi" is a cable of our own between two TUN devices, with its delay and rate.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::cable::Cable;
use super::cluster::{Endless, Home, Ready, body, post};
use super::skip;

/// A second machine and both links to it; gone when dropped.
struct Rig {
    namespace: String,
    fast: String,
    slow: String,
    /// Keeps the TUN devices.
    devices: Option<Child>,
}

impl Rig {
    fn new(slow: Cable) -> Result<Self, String> {
        let number = std::process::id() % 100_000;
        let rig = Self {
            namespace: format!("daisy-links-{number}"),
            fast: format!("dzf{number}"),
            slow: format!("dzs{number}"),
            devices: None,
        };
        rig.build(slow)
    }

    fn build(mut self, slow: Cable) -> Result<Self, String> {
        let Self { namespace, fast, slow: wifi, .. } = &self;
        ip(&format!("netns add {namespace}"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("link add {fast}p type veth peer name {fast}q netns {namespace}"))?;
        for (within, port, end) in [(String::new(), "p", 1), (format!("-n {namespace} "), "q", 2)] {
            ip(&format!("{within}link add {fast} type bridge"))?;
            ip(&format!("{within}link set {fast}{port} master {fast}"))?;
            ip(&format!("{within}link set {fast}{port} up"))?;
            ip(&format!("{within}link set {fast} up"))?;
            ip(&format!("{within}addr add {FAST}.{end}/24 dev {fast}"))?;
        }
        let script = format!("{}/scripts/lib/tun.py", env!("CARGO_MANIFEST_DIR"));
        let mut devices = Command::new("python3")
            .args([&script, wifi, "-", namespace])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("python3: {error}"))?;
        let mut line = String::new();
        let stdout = devices.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
        let (pid, numbers) = (devices.id(), line.split_whitespace());
        let fds: Vec<i32> = numbers.filter_map(|number| number.parse().ok()).collect();
        self.devices = Some(devices);
        let [near, far] = fds[..] else { return Err("no TUN devices".to_owned()) };
        let taken = |fd| take(pid, fd).map_err(|error| format!("pidfd_getfd: {error}"));
        slow.join(taken(near)?, taken(far)?).map_err(|error| error.to_string())?;
        for (within, end) in [(String::new(), 1), (format!("-n {} ", self.namespace), 2)] {
            ip(&format!("{within}addr add {SLOW}.{end}/24 dev {}", self.slow))?;
            ip(&format!("{within}link set {} up", self.slow))?;
        }
        Ok(self)
    }

    fn kinds(&self) -> String {
        format!("{}=thunderbolt,{}=wifi", self.fast, self.slow)
    }

    /// Both nodes, which know each other by the fast link.
    fn nodes(&self) -> Ready {
        let listen = format!("0.0.0.0:{PORT}");
        let near = Home::new("near").with_interfaces(&self.kinds());
        let far = Home::new("far").within(&self.namespace).with_interfaces(&self.kinds());
        let nodes = vec![(near, listen.clone()), (far, listen)];
        Ready::new(nodes).reached_at(&[&format!("{FAST}.2:{PORT}")])
    }

    /// Sent and received by this end, on the fast and on the slow link.
    fn bytes(&self) -> (u64, u64) {
        let of = |device: &str, way: &str| -> u64 {
            let path = format!("/sys/class/net/{device}/statistics/{way}_bytes");
            std::fs::read_to_string(path).expect("a counter").trim().parse().expect("a number")
        };
        let both = |device: &str| of(device, "rx") + of(device, "tx");
        (both(&format!("{}p", self.fast)), both(&self.slow))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut devices) = self.devices.take() {
            let _ = devices.kill();
            let _ = devices.wait();
        }
        // Takes the far ends with it; what does not exist is gone already.
        let _ = ip(&format!("netns del {}", self.namespace));
        let _ = ip(&format!("link del {}", self.fast));
        let _ = ip(&format!("link del {}", self.slow));
    }
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

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip {words}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// One test for all, since the rig and the load take longer than the questions.
#[test]
fn hidden_states_take_the_fast_link_and_a_slow_one_is_refused() {
    let wifi = Cable {
        delay: Duration::from_millis(4),
        bit_per_s: Some(100_000_000),
        lost_per_million: 0,
    };
    let rig = match Rig::new(wifi) {
        Ok(rig) => rig,
        Err(why) => skip!("links", why),
    };
    let model = Endless::new();
    let ready = rig.nodes();
    let tokens: u32 = 120;

    let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
    serve.line("is ready, context");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let (fast, slow) = rig.bytes();
    let asked = post(url, &body("hello", &json!({"max_tokens": tokens})));
    assert_eq!(asked.0, 200, "{}", asked.1);
    let (fast, slow) = (rig.bytes().0 - fast, rig.bytes().1 - slow);
    let hidden_bytes = model.hidden() * 4;
    let least = u64::from(tokens) * hidden_bytes * 2;
    assert!(fast >= least, "{fast} bytes on the fast link, at least {least} are hidden states");
    assert!(slow * 100 < fast, "{slow} bytes on the slow link, {fast} on the fast one");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));

    let without_fast = ["--layers", "2,3", "--exclude-interface", &rig.fast];
    let mut serve = ready.serve(model.path(), &without_fast);
    assert_eq!(serve.exit_code(), Some(1));
    let said = serve.output();
    for part in [
        "the link between `near` and `far` cannot carry a model: it is Wi-Fi",
        &format!("{0} - {0}", rig.slow),
        "hint: a fast one is there, but --interface or --exclude-interface rules",
        "hint: `--link any` uses it all the same, for about",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }

    let mut any = without_fast.to_vec();
    any.extend(["--link", "any"]);
    let mut serve = ready.serve(model.path(), &any);
    serve.line("is ready, context");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    serve.line("note: the links cost about");
    let (_, slow) = rig.bytes();
    assert_eq!(post(url, &body("hello", &json!({"max_tokens": 8}))).0, 200);
    let slow = rig.bytes().1 - slow;
    assert!(slow >= 8 * hidden_bytes * 2, "{slow} bytes on the link that was asked for");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

const FAST: &str = "10.213.11";
const SLOW: &str = "10.213.12";
const PORT: u16 = 51_738;

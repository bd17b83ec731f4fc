//! A machine that runs short of memory: new requests wait outside, the model goes before the machine does.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::json;

use super::cluster::{Home, PATIENCE, Process, body, get, post, tiny, turn};
use super::skip;

/// Another program that takes memory; it gives it back when dropped.
struct Hog(Child);

impl Hog {
    fn of(mib: u64) -> Self {
        let script = format!(
            "import sys\nheld = bytearray({mib} << 20)\nheld[::4096] = b'x' * len(held[::4096])\n\
             print('held', flush=True)\nsys.stdin.read()"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut stdout, &mut line).expect("it speaks");
        assert_eq!(line.trim(), "held");
        Self(child)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn available_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib >> 10)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_machine_short_of_memory_refuses_then_unloads() {
    let _turn = turn();
    let available = match available_mib() {
        Some(mib) if mib > 6 << 10 => mib,
        _ => skip!("memory", "less than 6 GiB of memory are available"),
    };
    // What other processes take and leave meanwhile must not decide.
    let margin = 2 << 10;
    let home = Home::new("alone");
    let serve = || {
        let model = tiny("llama-f32");
        let mut command = home.serve(&model, &["--headroom-gb", "0"]);
        command.env("DAISY_MEMORY_FLOOR", format!("{}MiB", available - margin));
        Process::spawn(command)
    };
    let mut served = serve();
    let line = served.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let asked = || post(url, &body("hello", &json!({"max_tokens": 4})));
    assert_eq!(asked().0, 200);

    let hog = Hog::of(margin + (3 << 9));
    served.line("note: alone is short of memory:");
    let (status, answer) = asked();
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("short_of_memory")));
    assert_eq!(get(&url.replace("/v1", "/ready")).0, 503);
    drop(hog);
    served.line("note: alone has memory again");
    until("it answers again", || asked().0 == 200);

    let hog = Hog::of(margin + (3 << 9));
    let said = served.line("error: the pipeline failed: ");
    assert!(said.contains("the model was unloaded:"), "{said}");
    drop(hog);
    served.signal("-INT");
    assert_eq!(served.exit_code(), Some(0));
}

//! `daisy cluster up --install` and `--uninstall`: the node as a service that the system starts. What
//! is written and which commands run is decided by pure functions, [`plan`] and the two texts.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{Failure, render};

/// The machine and the user that a service is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) system: System,
    pub(crate) user: String,
    pub(crate) user_home: PathBuf,
    /// This program, by its whole path: a service has no shell's search path.
    pub(crate) program: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    MacOs,
    Linux,
}

/// One thing to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Folder(PathBuf),
    Write {
        path: PathBuf,
        text: String,
    },
    Remove(PathBuf),
    Run(Vec<String>),
    /// May fail: there may be nothing to end.
    Try(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Install,
    Uninstall,
}

/// Does it, `args` being what `daisy` is called with.
pub(crate) fn run(wish: Wish, args: &[String]) -> Result<(), Failure> {
    let system = match std::env::consts::OS {
        "macos" => System::MacOs,
        "linux" => System::Linux,
        other => return Err(Failure::usage(format!("there is no service for {other}"))),
    };
    let user_home = std::env::home_dir().context("this user has no home directory")?;
    let target = Target {
        system,
        user: user_name()?,
        program: std::env::current_exe().context("this program does not know its own path")?,
        user_home,
    };
    for step in plan(wish, &target, args) {
        carry_out(&step)?;
    }
    Ok(())
}

fn user_name() -> Result<String, Failure> {
    let output = Command::new("id").arg("-un").output().context("cannot run `id -un`")?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if name.is_empty() || name == "root" {
        return Err(Failure::usage(
            "run this as the user whose node it is, not as root: it asks for sudo itself where it must",
        ));
    }
    Ok(name)
}

fn carry_out(step: &Step) -> Result<(), Failure> {
    match step {
        Step::Say(text) => render::note(text),
        Step::Folder(path) => std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make {}", path.display()))?,
        Step::Write { path, text } => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
        Step::Remove(path) => match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        },
        Step::Run(words) | Step::Try(words) => {
            let line = words.join(" ");
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            let is_tried = matches!(step, Step::Try(_));
            if is_tried {
                command.stderr(std::process::Stdio::null());
            }
            let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
            if !status.success() && !is_tried {
                Err(anyhow::anyhow!("`{line}` failed ({status}); what it said stands above"))?;
            }
        }
    }
    Ok(())
}

/// What installing or uninstalling takes.
pub(crate) fn plan(wish: Wish, target: &Target, args: &[String]) -> Vec<Step> {
    match (target.system, wish) {
        (System::Linux, Wish::Install) => {
            let unit = unit_path(target);
            vec![
                Step::Folder(unit.parent().unwrap_or(Path::new("/")).to_owned()),
                Step::Write { path: unit, text: systemd_unit(target, args) },
                Step::Run(words("systemctl --user daemon-reload")),
                Step::Run(words("systemctl --user enable --now daisy.service")),
                Step::Say(
                    "the node runs now and whenever you log in; `loginctl enable-linger` keeps it \
                     running without a login"
                        .to_owned(),
                ),
            ]
        }
        (System::Linux, Wish::Uninstall) => vec![
            Step::Try(words("systemctl --user disable --now daisy.service")),
            Step::Remove(unit_path(target)),
            Step::Run(words("systemctl --user daemon-reload")),
        ],
        (System::MacOs, Wish::Install) => {
            let logs = target.user_home.join("Library/Logs/daisy");
            let draft = logs.join(format!("{LABEL}.plist"));
            let there = format!("/Library/LaunchDaemons/{LABEL}.plist");
            let draft_text = draft.display().to_string();
            let install =
                ["sudo", "install", "-o", "root", "-g", "wheel", "-m", "644", &draft_text, &there];
            vec![
                Step::Say(format!(
                    "sudo is asked for once: only a daemon of the system may use the local network \
                     without a privacy prompt, and {there} belongs to root. The node itself runs as {}.",
                    target.user
                )),
                Step::Folder(logs),
                Step::Write { path: draft.clone(), text: launch_daemon(target, args) },
                Step::Run(install.map(str::to_owned).to_vec()),
                Step::Remove(draft),
                Step::Try(words(&format!("sudo launchctl bootout system/{LABEL}"))),
                Step::Run(words(&format!("sudo launchctl bootstrap system {there}"))),
                Step::Say("the node runs now and from each start of this Mac on".to_owned()),
            ]
        }
        (System::MacOs, Wish::Uninstall) => vec![
            Step::Say("sudo is asked for: the service belongs to the system".to_owned()),
            Step::Try(words(&format!("sudo launchctl bootout system/{LABEL}"))),
            Step::Run(words(&format!("sudo rm -f /Library/LaunchDaemons/{LABEL}.plist"))),
        ],
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn unit_path(target: &Target) -> PathBuf {
    target.user_home.join(".config/systemd/user/daisy.service")
}

/// A unit of the user's own systemd. A node that ends well stays down, as `daisy cluster down` wants.
pub(crate) fn systemd_unit(target: &Target, args: &[String]) -> String {
    let program = target.program.display().to_string();
    let line: Vec<String> =
        std::iter::once(&program).chain(args).map(|word| systemd_word(word)).collect();
    format!(
        "[Unit]\n\
         Description=Daisy node\n\
         \n\
         [Service]\n\
         ExecStart={}\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         LimitNOFILE=8192\n\
         KillMode=mixed\n\
         TimeoutStopSec=20\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        line.join(" ")
    )
}

/// One word of `ExecStart=`: quoted, with systemd's own escapes; `%` and `$` would be expanded.
fn systemd_word(word: &str) -> String {
    let mut out = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '%' => out.push_str("%%"),
            '$' => out.push_str("$$"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A daemon of the system that runs as the user: launchd's agents fall under Local Network privacy,
/// its daemons do not. Interactive: the system must not throttle it as background work.
pub(crate) fn launch_daemon(target: &Target, args: &[String]) -> String {
    let program = target.program.display().to_string();
    let words: Vec<String> = std::iter::once(&program)
        .chain(args)
        .map(|word| format!("    <string>{}</string>\n", xml(word)))
        .collect();
    let words = words.concat();
    let log = target.user_home.join("Library/Logs/daisy/node.log").display().to_string();
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>UserName</key>
  <string>{user}</string>
  <key>ProgramArguments</key>
  <array>
{words}  </array>
  <key>EnvironmentVariables</key>
  <dict>
    <key>HOME</key>
    <string>{home}</string>
  </dict>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ProcessType</key>
  <string>Interactive</string>
  <key>SoftResourceLimits</key>
  <dict>
    <key>NumberOfFiles</key>
    <integer>8192</integer>
  </dict>
  <key>StandardOutPath</key>
  <string>{log}</string>
  <key>StandardErrorPath</key>
  <string>{log}</string>
</dict>
</plist>
"#,
        user = xml(&target.user),
        home = xml(&target.user_home.display().to_string()),
        log = xml(&log),
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const LABEL: &str = "org.daisy.node";

#[cfg(test)]
mod tests {
    use super::*;

    fn target(system: System) -> Target {
        Target {
            system,
            user: "anna".to_owned(),
            user_home: PathBuf::from("/Users/anna"),
            program: PathBuf::from("/opt/daisy & co/daisy"),
        }
    }

    fn args() -> Vec<String> {
        let args =
            ["--home", "/Users/anna/.daisy", "cluster", "up", "--name", "100% \"Anna\" <$1>"];
        args.map(str::to_owned).to_vec()
    }

    #[test]
    fn the_unit_starts_exactly_this_and_leaves_an_ended_node_down() {
        let unit = systemd_unit(&target(System::Linux), &args());
        let line = unit.lines().find(|line| line.starts_with("ExecStart=")).expect("a command");
        assert_eq!(
            line,
            r#"ExecStart="/opt/daisy & co/daisy" "--home" "/Users/anna/.daisy" "cluster" "up" "--name" "100%% \"Anna\" <$$1>""#
        );
        for part in ["Restart=on-failure", "LimitNOFILE=8192", "WantedBy=default.target"] {
            assert!(unit.contains(part), "{part}: {unit}");
        }
        assert_eq!(systemd_word("a\nUser=root"), "\"a\\nUser=root\"", "no line of its own");
    }

    #[test]
    fn the_daemon_runs_as_the_user_interactive_with_room_for_descriptors() {
        let plist = launch_daemon(&target(System::MacOs), &args());
        let flat = plist.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "<key>UserName</key> <string>anna</string>",
            "<key>ProcessType</key> <string>Interactive</string>",
            "<key>KeepAlive</key>",
            "<key>NumberOfFiles</key> <integer>8192</integer>",
            "<string>/Users/anna/Library/Logs/daisy/node.log</string>",
            "<string>/opt/daisy &amp; co/daisy</string> <string>--home</string>",
            "<string>100% \"Anna\" &lt;$1&gt;</string>",
        ] {
            assert!(flat.contains(part), "{part}: {plist}");
        }
        for tag in ["dict", "array", "string", "key", "plist"] {
            let count = |text: &str| plist.matches(text).count();
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }

    #[test]
    fn sudo_is_explained_before_it_is_asked_for_and_linux_needs_none() {
        let uses_sudo = |step: &Step| match step {
            Step::Run(words) | Step::Try(words) => words[0] == "sudo",
            _ => false,
        };
        for wish in [Wish::Install, Wish::Uninstall] {
            let steps = plan(wish, &target(System::MacOs), &args());
            let Step::Say(why) = &steps[0] else { panic!("{steps:?}") };
            assert!(why.contains("sudo"), "{why}");
            assert!(steps.iter().any(uses_sudo));
            assert!(!plan(wish, &target(System::Linux), &args()).iter().any(uses_sudo));
        }
        let steps = plan(Wish::Uninstall, &target(System::Linux), &[]);
        let unit = PathBuf::from("/Users/anna/.config/systemd/user/daisy.service");
        assert!(steps.contains(&Step::Remove(unit)));
    }
}

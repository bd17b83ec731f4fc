//! `daisy cluster pair USER@HOST` against a real sshd: who is trusted, who is let in, what is said when
//! it does not work, and that both machines know each other afterwards or neither.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::cluster::{Home, PATIENCE, Process, turn};
use super::rig::{Cable, await_state};
use super::skip;
use super::sshd::{Agent, Here, Server, keygen, write_program};

macro_rules! server {
    ($name:literal) => {
        server!($name, "")
    };
    ($name:literal, $more:expr) => {
        match Server::start($more) {
            Ok(server) => server,
            Err(why) => skip!($name, why),
        }
    };
}

#[test]
fn a_new_host_is_accepted_by_its_fingerprint_alone() {
    let _turn = turn();
    let server = server!("ssh, a new host");
    let here = Here::new();
    server.admit(&here.key("id_ed25519", "ed25519", ""));
    let to = server.to();
    let fingerprint = server.fingerprint("ed25519");

    let said = here.pair(&[&to]);
    let remedy = format!("--accept-new-host-key {fingerprint}");
    said.refused(1, &[&server.name(), "ssh-ed25519", &remedy], &here, &server);
    let other = server.fingerprint("rsa");
    here.pair(&[&to, "--accept-new-host-key", &other]).refused(
        1,
        &[&fingerprint, &other],
        &here,
        &server,
    );
    here.pair(&[&to, "--accept-new-host-key", "md5:00"]).refused(2, &["SHA256:"], &here, &server);
    here.config("StrictHostKeyChecking yes\n");
    here.pair(&[&to]).refused(1, &["StrictHostKeyChecking"], &here, &server);
    assert!(!here.ssh("known_hosts").exists(), "nothing was accepted");

    here.pair(&[&to, "--accept-new-host-key", &fingerprint]).paired(&here, &server);
    let known = fs::read_to_string(here.ssh("known_hosts")).expect("written");
    assert_eq!(known, format!("{} {}\n", server.name(), server.host_key("ed25519")));
    let mode = fs::metadata(here.ssh("known_hosts")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Known now; and pairing twice does no harm.
    here.pair(&[&to]).paired(&here, &server);
}

#[test]
fn on_a_terminal_a_new_host_is_shown_and_asked_for() {
    let _turn = turn();
    let server = server!("ssh, a terminal");
    let here = Here::new();
    server.admit(&here.key("id_ed25519", "ed25519", ""));
    let to = server.to();
    let said = here.pair_on_terminal(&[("(yes or no)", "no")], &[&to]);
    said.refused(1, &[&server.fingerprint("ed25519"), "was not accepted"], &here, &server);
    here.pair_on_terminal(&[("(yes or no)", "y")], &[&to]).refused(1, &[], &here, &server);
    assert!(!here.ssh("known_hosts").exists());
    here.pair_on_terminal(&[("(yes or no)", "yes")], &[&to]).paired(&here, &server);
}

#[test]
fn known_hosts_is_held_strictly() {
    let _turn = turn();
    let server = server!("ssh, known_hosts");
    let here = Here::of(&server);
    let (name, key, to) = (server.name(), server.host_key("ed25519"), server.to());
    keygen(&here.path().join("other"), "ed25519", "");
    let other = fs::read_to_string(here.path().join("other.pub")).expect("a key");
    let other = other.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let file = here.ssh("known_hosts").display().to_string();
    for (lines, words) in [
        (format!("x {key}\n{name} {other}"), [format!("{file}:2"), "ssh-keygen -R".to_owned()]),
        (format!("{name} {key}\n@revoked * {key}"), [format!("{file}:2"), "revoked".to_owned()]),
        (format!("@revoked\t{name}\t{key}"), [format!("{file}:1"), "revoked".to_owned()]),
        (
            format!("@cert-authority [127.0.0.1]:* {key}"),
            [format!("{file}:1"), "--ssh system".to_owned()],
        ),
        (
            format!("[127.0.0.*]:*,!{name} {key}"),
            ["is not known".to_owned(), server.fingerprint("ed25519")],
        ),
    ] {
        here.knows(&lines);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        here.pair(&[&to]).refused(1, &words, &here, &server);
    }
    // Hashed, as ssh-keygen does it; a pattern; tabs; known by an RSA key alone.
    here.knows(&format!("{name} {key}"));
    let hashed =
        Command::new("ssh-keygen").args(["-H", "-f"]).arg(here.ssh("known_hosts")).output();
    assert!(hashed.expect("ssh-keygen runs").status.success());
    let hashed = fs::read_to_string(here.ssh("known_hosts")).expect("text");
    assert!(hashed.starts_with("|1|"), "{hashed}");
    let rsa = server.host_key("rsa");
    for lines in [
        hashed.trim().to_owned(),
        format!("[127.0.0.*]:{} {key}", server.port),
        format!("{name}\t{}", key.replace(' ', "\t")),
        format!("{name} {rsa}"),
        format!("{name} ssh-ed25519 damaged\n{name} {key}"),
    ] {
        here.knows(&lines);
        here.pair(&[&to]).paired(&here, &server);
    }
    // In another file, under another name.
    fs::write(here.path().join("known"), format!("box {key}\n")).expect("written");
    fs::remove_file(here.ssh("known_hosts")).expect("gone");
    let (port, user, home) = (server.port, &server.user, here.path().display());
    here.config(&format!(
        "Host mini\n HostName 127.0.0.1\n Port {port}\n User {user}\n HostKeyAlias box\n \
         UserKnownHostsFile {home}/known\n"
    ));
    here.pair(&["mini"]).paired(&here, &server);
}

#[test]
fn keys_of_files_and_of_the_agent_let_in() {
    let _turn = turn();
    let server = server!("ssh, keys");
    let to = server.to();
    for kind in ["ed25519", "rsa", "ecdsa"] {
        let here = Here::of(&server);
        fs::remove_file(here.ssh("id_ed25519")).expect("gone");
        server.admit(&here.key(&format!("id_{kind}-of-its-own"), kind, ""));
        let file = here.ssh(&format!("id_{kind}-of-its-own"));
        here.config(&format!("IdentityFile {}\n", file.display()));
        here.pair(&[&to]).paired(&here, &server);
    }
    for kind in ["ed25519", "rsa"] {
        let mut here = Here::of(&server);
        fs::remove_file(here.ssh("id_ed25519")).expect("gone");
        let socket = here.path().join("agent");
        let _agent = Agent::start(&socket);
        here.environment.push(("SSH_AUTH_SOCK".to_owned(), socket.display().to_string()));
        server.admit(&here.key("only-in-the-agent", kind, ""));
        let added = here.ssh("only-in-the-agent");
        let added = Command::new("ssh-add").arg(added).env("SSH_AUTH_SOCK", &socket).output();
        assert!(added.expect("ssh-add runs").status.success());
        fs::remove_file(here.ssh("only-in-the-agent")).expect("gone");
        here.pair(&[&to]).paired(&here, &server);
        // A file names the key that the agent has; without one it has nothing to give.
        here.config(&format!(
            "IdentitiesOnly yes\nIdentityFile {}\n",
            here.ssh("only-in-the-agent.pub").display()
        ));
        here.pair(&[&to]).paired(&here, &server);
        here.config("IdentitiesOnly yes\n");
        here.pair(&[&to]).fails(1, &["did not let us in"]);
        here.config("IdentityAgent none\n");
        here.pair(&[&to]).fails(1, &["did not let us in"]);
    }
}

#[test]
fn a_passphrase_is_asked_for_a_key_that_would_let_in() {
    let _turn = turn();
    let server = server!("ssh, passphrases");
    let here = Here::of(&server);
    let to = server.to();
    fs::remove_file(here.ssh("id_ed25519")).expect("gone");
    // The server would not take this one, so nobody is asked for it.
    here.key("id_ecdsa", "ecdsa", "another");
    server.admit(&here.key("id_rsa", "rsa", "right"));
    here.pair(&[&to]).refused(1, &["id_rsa (it has a passphrase)"], &here, &server);
    let prompt = "hidden:id_rsa: ";
    let wrong = [(prompt, "wrong"), (prompt, "wrong"), (prompt, "wrong")];
    let said = here.pair_on_terminal(&wrong, &[&to]);
    said.refused(1, &["id_rsa (its passphrase is another one)"], &here, &server);
    let said = here.pair_on_terminal(&[(prompt, "wrong"), (prompt, "right")], &[&to]);
    said.paired(&here, &server);
    assert!(!said.text.contains("right") && !said.text.contains("id_ecdsa"), "{}", said.text);
}

#[test]
fn who_has_no_key_is_told_what_was_tried() {
    let _turn = turn();
    let server = server!("ssh, no key");
    let here = Here::of(&server);
    let to = server.to();
    fs::remove_file(here.ssh("id_ed25519")).expect("gone");
    here.pair(&[&to]).refused(1, &["nothing to try", "ssh-copy-id"], &here, &server);
    here.key("id_ed25519", "ed25519", "");
    let key = here.ssh("id_ed25519").display().to_string();
    here.pair(&[&to]).refused(1, &["tried: ", &key, "takes publickey"], &here, &server);
    fs::set_permissions(here.ssh("id_ed25519"), PermissionsExt::from_mode(0o644)).expect("set");
    here.pair(&[&to]).refused(1, &["chmod 600"], &here, &server);
    here.config("IdentityFile ~/.ssh/missing\n");
    here.pair(&[&to]).refused(1, &["missing (not there)"], &here, &server);
    here.config("Match exec true\n");
    here.pair(&[&to]).refused(1, &["config:1", "--ssh system"], &here, &server);
    // Keys without end are more than the server lets one try.
    let name = |number| format!("k{number}");
    let many: Vec<String> = (0..9).map(|k| format!("IdentityFile ~/.ssh/{}\n", name(k))).collect();
    (0..9).for_each(|number| drop(here.key(&name(number), "ed25519", "")));
    here.config(&many.concat());
    here.pair(&[&to]).refused(1, &["tries to log in", "IdentitiesOnly"], &here, &server);
}

#[test]
fn a_machine_without_this_daisy_is_told_plainly() {
    let _turn = turn();
    let server = server!("ssh, no daisy");
    let here = Here::of(&server);
    let to = server.to();
    server.without_daisy();
    here.pair(&[&to]).refused(1, &["no `daisy` on 127.0.0.1", "--install"], &here, &server);
    server
        .play_daisy("[ \"$1\" = --version ] && echo daisy 0.0.9 && exit; echo unknown >&2; exit 2");
    here.pair(&[&to]).refused(1, &["is daisy 0.0.9", "--install"], &here, &server);
    server.play_daisy("echo no such library >&2; exit 1");
    here.pair(&[&to]).refused(1, &["does not start: no such library"], &here, &server);
    let introduce = |protocol: u32, id: &str| {
        format!(
            "[ \"$1\" = --version ] && echo daisy 7 && exit; echo hello; echo '{{\"introduction\":{{\
             \"protocol\":{protocol},\"build\":\"daisy 7\",\"id\":\"{id}\",\"name\":\"x\",\"port\":null}}}}'"
        )
    };
    let id = "a".repeat(52);
    server.play_daisy(&introduce(0, &id));
    here.pair(&[&to]).refused(1, &["127.0.0.1 is older", "protocol 0"], &here, &server);
    server.play_daisy(&introduce(999, &id));
    here.pair(&[&to]).refused(1, &["this machine is older"], &here, &server);
    server.play_daisy(&introduce(1, &here.id()));
    here.pair(&[&to]).refused(1, &["reset-identity"], &here, &server);
    server.play_daisy("[ \"$1\" = --version ] && echo daisy 7 && exit; yes | tr -d '\\n'");
    here.pair(&[&to]).refused(3, &["no text"], &here, &server);
}

#[test]
fn any_login_shell_there_will_do() {
    let _turn = turn();
    for shell in ["bash", "dash", "zsh", "fish", "tcsh", "csh", "ksh"] {
        if !Path::new("/usr/bin").join(shell).exists() && !Path::new("/bin").join(shell).exists() {
            continue;
        }
        let run = format!("ForceCommand exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"");
        let server = server!("ssh, login shells", &run);
        let here = Here::of(&server);
        here.pair(&[&server.to()]).paired(&here, &server);
        println!("paired by way of {shell}");
    }
    // One that greets, and one that is none.
    let server =
        server!("ssh, login shells", "ForceCommand echo hello; eval \"$SSH_ORIGINAL_COMMAND\"");
    let here = Here::of(&server);
    here.pair(&[&server.to()]).paired(&here, &server);
    let server = server!("ssh, login shells", "ForceCommand echo this account is off >&2; exit 1");
    let here = Here::of(&server);
    here.pair(&[&server.to()]).refused(3, &["this account is off"], &here, &server);
}

#[test]
fn the_systems_ssh_does_what_ours_does_not() {
    let _turn = turn();
    let server = server!("ssh, system");
    let mut here = Here::of(&server);
    let (port, user) = (server.port, &server.user);
    // Its home is the account's, whatever HOME says; and the way leads through a command.
    let config = format!(
        "Host mini\n HostName 127.0.0.1\n Port {port}\n User {user}\n ProxyCommand python3 \
         {}/relay.py %h %p\n IdentityFile {}\n UserKnownHostsFile {}\n",
        here.path().display(),
        here.ssh("id_ed25519").display(),
        here.ssh("known_hosts").display()
    );
    here.config(&config);
    fs::write(here.path().join("relay.py"), RELAY).expect("written");
    here.pair(&["mini"]).refused(1, &["ProxyCommand", "--ssh system"], &here, &server);
    fs::create_dir(here.path().join("bin")).expect("a folder");
    let file = here.ssh("config");
    write_program(
        &here.path().join("bin/ssh"),
        &format!("exec /usr/bin/ssh -F {} \"$@\"", file.display()),
    );
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = here.path().join("bin");
    here.environment.push(("PATH".to_owned(), format!("{}:{path}", bin.display())));
    here.pair(&["mini", "--ssh", "system"]).paired(&here, &server);

    let other = Here::new();
    let refused = other.pair(&["nobody@127.0.0.1:1", "--ssh", "system"]);
    refused.refused(3, &["ended before anything ran"], &other, &other_server(&server));
}

/// Its list of peers is not empty any more, so another one stands in.
fn other_server(server: &Server) -> Server {
    let _ = fs::remove_file(server.daisy_home().join("peers.toml"));
    Server::start("").expect("it started before")
}

#[test]
fn names_that_could_be_options_go_nowhere() {
    let here = Here::new();
    let trap = here.path().join("bin");
    fs::create_dir(&trap).expect("a folder");
    let made = here.path().join("made").display().to_string();
    write_program(&trap.join("ssh"), &format!("touch {made}"));
    for to in [
        "-oProxyCommand=touch /tmp/x",
        "anna@-oProxyCommand=x",
        "-lroot@mini",
        "anna@mini;reboot",
        "anna@`id`",
        "anna@mini:22:23x",
    ] {
        for more in [&[][..], &["--ssh", "system"]] {
            let mut command = here.daisy(&["cluster", "pair"]);
            let output = command.args(more).arg("--").arg(to).env("PATH", &trap).output();
            let output = output.expect("it runs");
            assert_eq!(output.status.code(), Some(2), "{to}: {output:?}");
        }
    }
    assert!(!Path::new(&made).exists());
    for (args, word) in [
        (&["417-209", "--install"][..], "--install is for USER@HOST"),
        (&["anna@mini", "--peer", "10.0.0.1"], "--peer is for codes"),
    ] {
        here.pair(args).fails(2, &[word]);
    }
}

/// How a server that is none treats a connection.
type Behaviour = fn(std::net::TcpStream);

#[test]
fn a_machine_that_is_not_reached_is_told_from_one_that_hangs() {
    let here = Here::new();
    here.pair(&["anna@nobody.invalid"]).fails(3, &["no address of nobody.invalid"]);
    let closed =
        TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let to = format!("anna@{closed}");
    here.pair(&[&to]).fails(3, &["refuses connections", "Remote Login"]);

    // One that takes the connection and is silent, one that talks without end, one that hangs up.
    let cases: &[(Behaviour, &str)] = &[
        (
            |mut silent| drop(silent.read_to_end(&mut Vec::new())),
            "did not say what an SSH server says",
        ),
        (|mut endless| while endless.write_all(&[b'x'; 4096]).is_ok() {}, "broke off"),
        (drop, "broke off"),
    ];
    std::thread::scope(|scope| {
        for (behaviour, word) in cases {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let to = format!("anna@{}", listener.local_addr().expect("an address"));
            std::thread::spawn(move || {
                if let Ok((stream, _)) = listener.accept() {
                    behaviour(stream);
                }
            });
            scope.spawn(move || Here::new().pair(&[&to]).fails(3, &[word]));
        }
    });
}

#[test]
fn a_try_that_is_cut_leaves_nothing_on_either_side() {
    let _turn = turn();
    let server = server!("ssh, cut");
    let to = server.to();
    let real = env!("CARGO_BIN_EXE_daisy");
    let version = format!("[ \"$1\" = --version ] && exec {real} --version; ");
    // $PPID is the server's process for this connection. The word to keep comes once this side has.
    let cut_at_keep =
        format!("{{ read line; echo \"$line\"; read keep; kill -9 $PPID; }} | {real} \"$@\"");
    for (what, cut) in [
        ("before a word", "kill -9 $PPID".to_owned()),
        ("after it heard of us", "read line; kill -9 $PPID".to_owned()),
        ("after we have kept it", cut_at_keep.clone()),
        (
            "before the last word",
            format!("{real} \"$@\" | {{ read line; echo \"$line\"; exec >&-; cat >/dev/null; }}"),
        ),
    ] {
        let here = Here::of(&server);
        server.play_daisy(&format!("{version}{cut}"));
        let said = here.pair(&[&to]);
        assert_eq!(said.code, Some(3), "{what}: {}", said.text);
        assert!(!here.peers().contains("[[peer]]"), "{what}: {}", here.peers());
        if what == "before the last word" {
            // The one moment that no order of words takes away: the other side did, and could not say so.
            assert!(said.text.contains("daisy cluster unpair"), "{}", said.text);
        } else {
            assert!(!server.peers().contains(&here.id()), "{what}: {}", server.peers());
        }
    }
    // Whoever was known before stays known.
    server.link_daisy(Path::new(real));
    let here = Here::of(&server);
    here.pair(&[&to]).paired(&here, &server);
    server.play_daisy(&format!("{version}{cut_at_keep}"));
    here.pair(&[&to]).fails(3, &["knows it as before"]);
    assert!(here.peers().contains(&server.id()));
}

#[test]
fn an_interrupted_try_takes_its_part_back() {
    let _turn = turn();
    let server = server!("ssh, interrupted");
    let here = Here::of(&server);
    let real = env!("CARGO_BIN_EXE_daisy");
    let heard = server.home().join("heard");
    // It introduces itself, hears the word to keep, and then says nothing more.
    server.play_daisy(&format!(
        "[ \"$1\" = --version ] && exec {real} --version; \
         {{ read line; echo \"$line\"; read keep; touch {}; cat; }} | {real} \"$@\"",
        heard.display()
    ));
    let mut pair = Process::spawn(here.daisy(&["cluster", "pair", &server.to()]));
    let until = Instant::now() + PATIENCE;
    while !heard.exists() {
        assert!(Instant::now() < until, "{}", pair.output());
        std::thread::yield_now();
    }
    assert!(here.peers().contains("[[peer]]"), "kept before the word");
    pair.signal("-INT");
    assert_eq!(pair.exit_code(), Some(3), "{}", pair.output());
    assert!(pair.output().contains("it was interrupted"), "{}", pair.output());
    assert!(!here.peers().contains("[[peer]]") && !server.peers().contains("[[peer]]"));
}

#[test]
fn a_package_is_copied_to_a_machine_of_the_same_kind() {
    let _turn = turn();
    let server = server!("ssh, install");
    let mut here = Here::of(&server);
    let to = server.to();
    server.without_daisy();
    let built = here.pair(&[&to, "--install"]);
    built.refused(1, &["--install copies an installed package"], &here, &server);

    let package = here.path().join("lib/daisy");
    fs::create_dir_all(&package).expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(&here.binary, package.join("daisy")).expect("copied");
    fs::copy(root.join("scripts/packaging/install"), package.join("install")).expect("copied");
    let arch = std::env::consts::ARCH;
    let facts = format!("os=linux\narch={arch}\nkind=cpu\noldest=2.17\nfor=Linux\ninstead=none\n");
    fs::write(package.join("package"), facts).expect("written");
    here.binary = package.join("daisy");

    server.play("uname", "echo Darwin arm64");
    here.pair(&[&to, "--install"]).refused(1, &["is Darwin arm64", "Linux"], &here, &server);
    server.play("uname", "exec /usr/bin/uname \"$@\"");
    server.play("sha256sum", "cat >/dev/null; echo 0000");
    let temporary = server.home().join("tmp");
    fs::create_dir(&temporary).expect("a folder");
    server.play("mktemp", &format!("exec /usr/bin/mktemp -d {}/XXXXXX", temporary.display()));
    let damaged = here.pair(&[&to, "--install"]);
    damaged.refused(1, &["is not what was sent"], &here, &server);
    assert!(!server.home().join(".local/lib/daisy").exists());
    assert_eq!(fs::read_dir(&temporary).expect("a folder").count(), 0, "nothing is left");

    server.play("sha256sum", "exec /usr/bin/sha256sum");
    server.play("getconf", "echo glibc 2.5");
    let old = here.pair(&[&to, "--install"]);
    old.refused(1, &["cannot run it there", "glibc 2.5"], &here, &server);
    server.play("getconf", "exec /usr/bin/getconf \"$@\"");
    let said = here.pair(&[&to, "--install"]);
    said.paired(&here, &server);
    assert!(said.text.contains("copying this machine's daisy"), "{}", said.text);
    assert!(server.home().join(".local/lib/daisy/package").exists());
    assert_eq!(fs::read_dir(&temporary).expect("a folder").count(), 0, "nothing is left");
    // It is there now, so nothing is copied.
    let again = here.pair(&[&to, "--install"]);
    again.paired(&here, &server);
    assert!(!again.text.contains("copying"), "{}", again.text);
}

#[test]
fn running_nodes_learn_of_each_other_at_once() {
    let _turn = turn();
    let server = server!("ssh, running nodes");
    let here = Here::of(&server);
    let up = |command: &mut Command, name: &str, more: &[&str]| {
        command.args([
            "cluster",
            "up",
            "--name",
            name,
            "--listen",
            "127.0.0.1:0",
            "--no-discovery",
        ]);
        command.args(more);
    };
    let mut theirs = Command::new(env!("CARGO_BIN_EXE_daisy"));
    theirs.env("DAISY_HOME", server.daisy_home());
    up(&mut theirs, "theirs", &[]);
    let theirs = Process::spawn(theirs);
    let line = theirs.line("is up");
    let addr = line.rsplit(' ').next().expect("an address");
    let ours = Home::new("ours");
    let mut command = ours.daisy(&[]);
    up(&mut command, "ours", &["--peer", addr]);
    let ours_up = Process::spawn(command);
    ours_up.line("is up");
    let mut pair = here.daisy(&["cluster", "pair", &server.to()]);
    let output = pair.env("DAISY_HOME", ours.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("paired with theirs"), "{said}");
    assert!(!said.contains("no node runs"), "{said}");
    await_state(&ours, "theirs", "ready", Duration::from_secs(10));
    let text = server.peers();
    assert!(text.contains("name = \"ours\""), "{text}");
}

#[test]
fn over_a_bare_cable_two_machines_are_paired_from_one_of_them() {
    let cable = match Cable::new() {
        Ok(cable) => cable,
        Err(why) => skip!("ssh, a cable", why),
    };
    // A link-local address has a scope: on each side the name of its own end of the cable.
    let (a, b) = (&cable.a, &cable.b);
    let listen = format!("{}%{}", b.link_local, b.device);
    let server = match Server::start_at(&listen, Some(&b.namespace), "") {
        Ok(server) => server,
        Err(why) => skip!("ssh, a cable", why),
    };
    let here = Here::of(&server);
    let alpha = Home::new("alpha").within(&a.namespace);
    let alpha_up = Process::spawn(alpha.daisy(&["cluster", "up", "--name", "alpha"]));
    alpha_up.line("is up");
    let mut up = Command::new("ip");
    up.args(["netns", "exec", &b.namespace, env!("CARGO_BIN_EXE_daisy")]);
    up.args(["cluster", "up", "--name", "beta"]).env("DAISY_HOME", server.daisy_home());
    let beta_up = Process::spawn(up);
    beta_up.line("is up");
    await_state(&alpha, "beta", "unpaired", Duration::from_secs(10));
    let to = format!("{}@[{}%{}]:{}", server.user, b.link_local, a.device, server.port);
    let mut pair = alpha.daisy(&["cluster", "pair", &to]);
    let name = format!("[{}%{}]:{}", b.link_local, a.device, server.port);
    here.knows(&format!("{name} {}", server.host_key("ed25519")));
    let output = pair.env("HOME", here.path()).env_remove("SSH_AUTH_SOCK").output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("paired with beta"), "{said}");
    await_state(&alpha, "beta", "ready", Duration::from_secs(10));
}

/// What a `ProxyCommand` does.
const RELAY: &str = "import os, socket, sys, threading\n\
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
    def up():\n    while (b := os.read(0, 65536)): s.sendall(b)\n    s.shutdown(1)\n\
    threading.Thread(target=up, daemon=True).start()\n\
    while (b := s.recv(65536)): os.write(1, b)\n";

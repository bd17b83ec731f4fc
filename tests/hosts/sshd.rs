//! A real SSH server on loopback, with its own configuration, host keys and home, and a machine's home on
//! this side that knows nothing but what a test gives it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::cluster::{PATIENCE, Process};

/// A server for the user who runs the tests, who is somebody else there: `home` is another one.
pub struct Server {
    dir: TempDir,
    _sshd: Process,
    pub port: u16,
    pub user: String,
}

/// This side's user.
pub struct Here {
    dir: TempDir,
    pub binary: PathBuf,
    pub environment: Vec<(String, String)>,
}

/// What came of a command.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
}

impl Server {
    /// `more` goes into the server's configuration. The error says why there is no server here.
    pub fn start(more: &str) -> Result<Self, String> {
        Self::start_at("127.0.0.1", None, more)
    }

    /// At another address, in a namespace.
    pub fn start_at(listen: &str, namespace: Option<&str>, more: &str) -> Result<Self, String> {
        let sshd =
            ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|at| Path::new(at).exists());
        let sshd = sshd.ok_or("this machine has no sshd (Debian: openssh-server)")?;
        let user = word(Command::new("id").arg("-un"));
        if user == "root" {
            // It gives up its rights there; Debian makes the folder when the service starts.
            fs::create_dir_all("/run/sshd").map_err(|error| format!("/run/sshd: {error}"))?;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().display().to_string();
        for kind in ["ed25519", "rsa", "ecdsa"] {
            keygen(&dir.path().join(kind), kind, "");
        }
        fs::create_dir_all(dir.path().join("home/.local/bin")).expect("folders");
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            free.local_addr().expect("an address").port()
        };
        let config = format!(
            "Port {port}\nListenAddress {listen}\nPidFile none\nUsePAM no\nStrictModes no\n\
             HostKey {path}/ed25519\nHostKey {path}/rsa\nHostKey {path}/ecdsa\n\
             AuthorizedKeysFile {path}/authorized_keys\nPermitRootLogin yes\nLogLevel INFO\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             SetEnv HOME={path}/home PATH={path}/bin:/usr/bin:/bin\n{more}\n"
        );
        fs::write(dir.path().join("config"), config).expect("written");
        let mut command = match namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, sshd]);
                command
            }
            None => Command::new(sshd),
        };
        command.args(["-D", "-e", "-f"]).arg(dir.path().join("config"));
        let sshd = Process::spawn(command);
        sshd.line("Server listening");
        let server = Self { dir, _sshd: sshd, port, user };
        server.link_daisy(Path::new(env!("CARGO_BIN_EXE_daisy")));
        Ok(server)
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Where its Daisy keeps its things.
    pub fn daisy_home(&self) -> PathBuf {
        self.home().join(".daisy")
    }

    fn daisy(&self) -> PathBuf {
        self.home().join(".local/bin/daisy")
    }

    pub fn link_daisy(&self, binary: &Path) {
        let _ = fs::remove_file(self.daisy());
        symlink(binary, self.daisy()).expect("linked");
    }

    pub fn without_daisy(&self) {
        fs::remove_file(self.daisy()).expect("gone");
    }

    /// Puts a shell script in the place of `daisy`.
    pub fn play_daisy(&self, script: &str) {
        let _ = fs::remove_file(self.daisy());
        write_program(&self.daisy(), script);
    }

    /// Puts a shell script in the way of a program there.
    pub fn play(&self, program: &str, script: &str) {
        fs::create_dir_all(self.dir.path().join("bin")).expect("a folder");
        write_program(&self.dir.path().join("bin").join(program), script);
    }

    /// The public half of a host key: kind and base64.
    pub fn host_key(&self, kind: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join(format!("{kind}.pub"))).expect("a key");
        text.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    pub fn fingerprint(&self, kind: &str) -> String {
        let file = self.dir.path().join(format!("{kind}.pub"));
        let line = word(Command::new("ssh-keygen").arg("-lf").arg(file));
        line.split(' ').nth(1).expect("a fingerprint").to_owned()
    }

    /// As `known_hosts` calls it, at its usual address.
    pub fn name(&self) -> String {
        format!("[127.0.0.1]:{}", self.port)
    }

    pub fn to(&self) -> String {
        format!("{}@127.0.0.1:{}", self.user, self.port)
    }

    pub fn admit(&self, public: &Path) {
        let key = fs::read(public).expect("a key");
        let path = self.dir.path().join("authorized_keys");
        let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opened");
        file.write_all(&key).expect("written");
    }

    /// The nodes that its Daisy trusts, as text.
    pub fn peers(&self) -> String {
        fs::read_to_string(self.daisy_home().join("peers.toml")).unwrap_or_default()
    }

    pub fn id(&self) -> String {
        let home = self.daisy_home();
        let mut command = Command::new(env!("CARGO_BIN_EXE_daisy"));
        word(command.args(["cluster", "id"]).env("DAISY_HOME", home))
    }
}

impl Here {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let ssh = dir.path().join(".ssh");
        fs::create_dir(&ssh).expect("a folder");
        fs::set_permissions(&ssh, Permissions::from_mode(0o700)).expect("set");
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_daisy"));
        Self { dir, binary, environment: Vec::new() }
    }

    /// Known to the server, and knowing it: what a machine is that was reached before.
    pub fn of(server: &Server) -> Self {
        let here = Self::new();
        server.admit(&here.key("id_ed25519", "ed25519", ""));
        here.knows(&format!("{} {}", server.name(), server.host_key("ed25519")));
        here
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn ssh(&self, name: &str) -> PathBuf {
        self.dir.path().join(".ssh").join(name)
    }

    /// Makes a key; gives the place of its public half.
    pub fn key(&self, name: &str, kind: &str, passphrase: &str) -> PathBuf {
        keygen(&self.ssh(name), kind, passphrase);
        self.ssh(&format!("{name}.pub"))
    }

    pub fn knows(&self, lines: &str) {
        fs::write(self.ssh("known_hosts"), format!("{lines}\n")).expect("written");
    }

    pub fn config(&self, text: &str) {
        fs::write(self.ssh("config"), text).expect("written");
    }

    pub fn peers(&self) -> String {
        fs::read_to_string(self.path().join(".daisy/peers.toml")).unwrap_or_default()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", self.path())
            .env("USER", "somebody")
            .env("DAISY_HOME", self.path().join(".daisy"))
            .env_remove("SSH_AUTH_SOCK")
            .env_remove("RUST_BACKTRACE")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn id(&self) -> String {
        word(self.command(&self.binary).args(["cluster", "id"]))
    }

    pub fn daisy(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.binary);
        command.args(args);
        command
    }

    /// `daisy cluster pair …`, from a script.
    pub fn pair(&self, args: &[&str]) -> Said {
        let mut command = self.daisy(&["cluster", "pair"]);
        said(command.args(args).stdin(Stdio::null()).output())
    }

    /// The same on a terminal, where each prompt gets its answer.
    pub fn pair_on_terminal(&self, answers: &[(&str, &str)], args: &[&str]) -> Said {
        let mut command = self.command(Path::new("python3"));
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/typist.py"));
        for (prompt, answer) in answers {
            command.args([prompt, answer]);
        }
        command.arg("--").arg(&self.binary).args(["cluster", "pair"]).args(args);
        said(command.stdin(Stdio::null()).output())
    }
}

impl Said {
    /// It went well and both know each other.
    pub fn paired(&self, here: &Here, server: &Server) {
        assert_eq!(self.code, Some(0), "{}", self.text);
        assert!(self.text.contains("paired with"), "{}", self.text);
        assert!(here.peers().contains(&server.id()), "{}", here.peers());
        assert!(server.peers().contains(&here.id()), "{}", server.peers());
    }

    /// It was refused with these words, and neither knows the other.
    pub fn refused(&self, code: i32, words: &[&str], here: &Here, server: &Server) {
        self.fails(code, words);
        assert!(!here.peers().contains("[[peer]]"), "{}\n{}", self.text, here.peers());
        assert!(!server.peers().contains("[[peer]]"), "{}\n{}", self.text, server.peers());
    }

    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "`{word}` is not in: {}", self.text);
        }
        assert!(!self.text.contains("panicked"), "{}", self.text);
    }
}

/// An agent of one test, with a key that no file has.
pub struct Agent(Child);

impl Agent {
    pub fn start(socket: &Path) -> Self {
        let mut command = Command::new("ssh-agent");
        command.arg("-D").arg("-a").arg(socket).stdout(Stdio::null());
        let agent = command.spawn().expect("ssh-agent starts");
        let until = Instant::now() + PATIENCE;
        while !socket.exists() {
            assert!(Instant::now() < until, "ssh-agent does not listen");
            std::thread::yield_now();
        }
        Self(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn keygen(path: &Path, kind: &str, passphrase: &str) {
    let mut command = Command::new("ssh-keygen");
    let output =
        command.args(["-q", "-t", kind, "-N", passphrase, "-C", kind, "-f"]).arg(path).output();
    let output = output.expect("ssh-keygen runs");
    assert!(output.status.success(), "{output:?}");
}

pub fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("set");
}

fn word(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn said(output: std::io::Result<Output>) -> Said {
    let output = output.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    Said { code: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
}

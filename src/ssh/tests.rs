//! The client against a server of the same library, for what a test's sshd cannot do without accounts:
//! passwords, questions, two proofs in a row, a server that ends it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{self, Auth, Response, VerifiedPublicKey};
use russh::{MethodKind, MethodSet};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;

/// What the server takes, one of them each time it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Password,
    Questions,
    /// A key, and then what it asks.
    Both,
    Kerberos,
}

struct Server {
    takes: Takes,
    has_key: bool,
    /// Whether the client took a channel that the server opened.
    channel: Option<oneshot::Sender<bool>>,
}

impl server::Handler for Server {
    type Error = russh::Error;

    async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
        let first = match self.takes {
            Takes::Password => MethodKind::Password,
            Takes::Questions => MethodKind::KeyboardInteractive,
            Takes::Both => MethodKind::PublicKey,
            Takes::Kerberos => MethodKind::GssapiWithMic,
        };
        Ok(only(first, false))
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, russh::Error> {
        let is_right = (user, password) == ("anna", "right");
        Ok(if is_right { Auth::Accept } else { only(MethodKind::Password, false) })
    }

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        self.has_key = true;
        Ok(only(MethodKind::KeyboardInteractive, true))
    }

    async fn auth_succeeded(&mut self, session: &mut server::Session) -> Result<(), russh::Error> {
        let handle = session.handle();
        if let Some(channel) = self.channel.take() {
            tokio::spawn(async move {
                let opened = [
                    handle.channel_open_session().await.is_ok(),
                    handle.channel_open_agent().await.is_ok(),
                    handle.channel_open_forwarded_tcpip("a", 1_u32, "b", 2_u32).await.is_ok(),
                ];
                let _ = channel.send(opened.contains(&true));
            });
        }
        Ok(())
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _: &str,
        _: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        if self.takes == Takes::Both && !self.has_key {
            return Ok(only(MethodKind::PublicKey, false));
        }
        let Some(response) = response else {
            let prompts = vec![("Password:\u{1b}[2J".into(), false), ("Number:".into(), true)];
            let (name, instructions) = ("".into(), "".into());
            return Ok(Auth::Partial { name, instructions, prompts: prompts.into() });
        };
        let typed: Vec<_> = response.collect();
        let is_right = typed == [&b"right"[..], b"7"];
        Ok(if is_right { Auth::Accept } else { only(MethodKind::KeyboardInteractive, false) })
    }
}

fn only(kind: MethodKind, partial_success: bool) -> Auth {
    let proceed_with_methods = Some(MethodSet::from(&[kind][..]));
    Auth::Reject { proceed_with_methods, partial_success }
}

/// A person who gives these answers in their order, and remembers what was asked.
#[derive(Default)]
struct Script {
    answers: Vec<&'static str>,
    asked: Vec<(String, Echo)>,
}

impl Ask for Script {
    fn ask(&mut self, question: &str, echo: Echo) -> Option<String> {
        self.asked.push((question.to_owned(), echo));
        if self.answers.is_empty() { None } else { Some(self.answers.remove(0).to_owned()) }
    }

    fn is_there(&self) -> bool {
        true
    }
}

fn key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).expect("a key")
}

/// Reaches a server that takes `takes`, and gives what came of it (once let in, whether the server could
/// open a channel) and what was asked.
async fn reach(
    takes: Takes,
    answers: &[&'static str],
    config: &str,
) -> (Result<bool, SshError>, Vec<(String, Echo)>) {
    let home = tempfile::tempdir().expect("a folder");
    let ssh = home.path().join(".ssh");
    std::fs::create_dir(&ssh).expect("a folder");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let host_key = key();
    let public = host_key.public_key().to_openssh().expect("text");
    std::fs::write(ssh.join("known_hosts"), format!("[127.0.0.1]:{} {public}\n", addr.port()))
        .expect("written");
    std::fs::write(ssh.join("config"), config).expect("written");
    if takes == Takes::Both {
        let text = key().to_openssh(russh::keys::ssh_key::LineEnding::LF).expect("text");
        std::fs::write(ssh.join("id_ed25519"), text.as_bytes()).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(ssh.join("id_ed25519"), mode).expect("set");
    }
    let (channel, opened) = oneshot::channel();
    let server = tokio::spawn(async move {
        let config = server::Config {
            keys: vec![host_key],
            methods: MethodSet::server_supported(),
            auth_rejection_time: Duration::ZERO,
            max_auth_attempts: 5,
            ..server::Config::default()
        };
        let (stream, _) = listener.accept().await.expect("a client");
        let handler = Server { takes, has_key: false, channel: Some(channel) };
        if let Ok(session) = server::run_stream(Arc::new(config), stream, handler).await {
            let _ = session.await;
        }
    });
    let user = User {
        name: "me".to_owned(),
        home: home.path().to_owned(),
        agent: None,
        variable: |_| None,
    };
    let to: Destination = format!("anna@{addr}").parse().expect("good");
    let settings = Settings::load(&to, &user).expect("good");
    let mut person = Script { answers: answers.to_vec(), asked: Vec::new() };
    let outcome = match connect(&settings, None, &mut person).await {
        Ok(_client) => Ok(opened.await.expect("an answer")),
        Err(error) => Err(error),
    };
    server.abort();
    (outcome, person.asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_asked_three_times_at_most() {
    let (outcome, asked) = reach(Takes::Password, &["wrong", "right"], "").await;
    let is_open = outcome.expect("let in");
    assert!(!is_open, "the server has nothing to open here");
    assert_eq!(asked, vec![("Password of anna@127.0.0.1: ".to_owned(), Echo::Hidden); 2]);
    let (outcome, asked) = reach(Takes::Password, &["a", "b", "c", "right"], "").await;
    let error = outcome.expect_err("three are enough").to_string();
    assert!(error.contains("tried: password, password, password"), "{error}");
    assert_eq!(asked.len(), 3);
    let (outcome, asked) = reach(Takes::Password, &[], "").await;
    assert!(outcome.is_err() && asked.len() == 1, "who does not answer is not asked again");
    for off in ["BatchMode yes", "PasswordAuthentication no"] {
        let (outcome, asked) = reach(Takes::Password, &["right"], off).await;
        let error = outcome.expect_err(off);
        assert!(asked.is_empty() && error.hints()[0].contains("it takes password"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_asks_is_put_to_the_person_as_it_can_be_shown() {
    let (outcome, asked) = reach(Takes::Questions, &["wrong", "7", "right", "7"], "").await;
    outcome.expect("let in");
    assert_eq!(asked[0], ("127.0.0.1 asks: Password:[2J ".to_owned(), Echo::Hidden));
    assert_eq!(asked[1], ("127.0.0.1 asks: Number: ".to_owned(), Echo::Seen));
    assert_eq!(asked.len(), 4);
    let (outcome, _) = reach(Takes::Questions, &["x"; 6], "").await;
    let error = outcome.expect_err("wrong").to_string();
    assert!(error.contains("tried: keyboard-interactive"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_two_proofs_gets_both() {
    let (outcome, asked) = reach(Takes::Both, &["right", "7"], "").await;
    outcome.expect("let in");
    assert_eq!(asked.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_in_that_only_ssh_has_is_named() {
    let (outcome, asked) = reach(Takes::Kerberos, &["right"], "").await;
    let error = outcome.expect_err("no way in");
    assert!(error.hints().join(" ").contains("--ssh system"), "{error}");
    assert!(asked.is_empty());
}

proptest! {
    /// Whatever a file or another machine says, it is read or refused, and never more than that.
    #[test]
    fn nothing_that_is_read_can_do_harm(text in "(?s:.{0,80})|[-a-z@:\\[\\]%*?!|1=\"'# \\\\\n\t]{0,80}") {
        let query = config::Query { host: "mini", user: None, local_user: "me" };
        let read = config::Values::read(Path::new("config"), &text, &query, &mut Nothing);
        if let Err(error) = read {
            prop_assert!(!error.to_string().is_empty());
        }
        let mut known = known_hosts::KnownHosts::default();
        known.add(Path::new("known_hosts"), &text);
        // Key bytes that no line of it can have.
        prop_assert_ne!(known.judge("mini", &[7; 100]), known_hosts::Verdict::Known);
        pattern::matches(&text, "mini.local");
        if let Ok(to) = text.parse::<Destination>() {
            prop_assert!(!to.host.starts_with('-') && !to.host.contains(char::is_whitespace));
            prop_assert!(to.user.is_none_or(|user| !user.starts_with('-') && !user.contains('\'')));
        }
        prop_assert!(shown(&text).chars().all(daisy_proto::hello::is_printable));
    }
}

struct Nothing;

impl config::Files for Nothing {
    fn include(&mut self, _: &str) -> Result<Vec<(std::path::PathBuf, String)>, String> {
        Ok(Vec::new())
    }
}

//! Our own SSH client: connects, looks at the host key, logs in, and runs commands.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russh::client::{self, ChannelOpenHandle, Config, Handle, Msg, Session};
use russh::keys::{Algorithm, HashAlg, PublicKeyOrCertificate};
use russh::{Channel, ChannelMsg, Disconnect, Preferred, Sig};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::error::SshError;
use super::files::read_text;
use super::known_hosts::{KnownHosts, NewHostKey, Verdict};
use super::login::{Ask, Login};
use super::network;
use super::running::{Ending, Running, Tail};
use super::settings::{Settings, StrictHostKeys};

/// A connection on which the user is logged in.
pub struct Client {
    handle: Handle<Door>,
    host: String,
}

/// Connects and logs in. A host that is not known is an error and not a question: the caller asks and
/// connects anew with what was `accepted`, so nobody is waited for while a server waits.
pub async fn connect(
    settings: &Settings,
    accepted: Option<&NewHostKey>,
    ask: &mut dyn Ask,
) -> Result<Client, SshError> {
    let mut known = known_hosts(settings)?;
    if let Some(accepted) = accepted {
        known.add(accepted.file(), &accepted.to_string());
    }
    let preferred = preferred(&known.kinds(&settings.known_as));
    let config = Config { preferred, keepalive_interval: Some(KEEP_ALIVE), ..Config::default() };
    let stream = network::reach(&settings.host, settings.port).await?;
    let door = Door { known, settings: settings.clone() };
    let host = settings.host.clone();
    let hello = client::connect_stream(Arc::new(config), stream, door);
    let mut handle = match timeout(HELLO_MAX, hello).await {
        Ok(Ok(handle)) => handle,
        Ok(Err(SshError::Protocol(why))) => return Err(SshError::Lost { host, why }),
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            let (what, seconds) = ("say what an SSH server says", HELLO_MAX.as_secs());
            return Err(SshError::TimedOut { host, what, seconds });
        }
    };
    Login::new(&mut handle, settings, ask).run().await?;
    Ok(Client { handle, host })
}

impl Client {
    /// Runs `command` by the login shell there.
    pub async fn start(&self, command: &str) -> Result<Running, SshError> {
        let starting = async {
            let channel = self.handle.channel_open_session().await?;
            channel.exec(true, command).await?;
            Ok::<_, russh::Error>(channel)
        };
        let lost = |why: String| SshError::Lost { host: self.host.clone(), why };
        let channel = match timeout(START_MAX, starting).await {
            Ok(started) => started.map_err(|error| lost(error.to_string()))?,
            Err(_) => {
                return Err(lost(format!("no command started within {} s", START_MAX.as_secs())));
            }
        };
        let (mut messages, writer) = channel.split();
        let (mut pipe, output) = tokio::io::duplex(PIPE_BYTES);
        let input = writer.make_writer();
        let ending = tokio::spawn(async move {
            let (mut status, mut said) = (None, Tail::default());
            while let Some(message) = messages.wait().await {
                match message {
                    // Nobody reads any more: what comes is let go, so that the end is still seen.
                    ChannelMsg::Data { data } => drop(pipe.write_all(&data).await),
                    ChannelMsg::ExtendedData { data, .. } => said.add(&data),
                    ChannelMsg::Eof => drop(pipe.shutdown().await),
                    ChannelMsg::ExitStatus { exit_status } => status = Some(exit_status),
                    ChannelMsg::ExitSignal { signal_name, .. } => said.add(&told(&signal_name)),
                    ChannelMsg::Failure => said.add(b"the server runs no commands"),
                    ChannelMsg::Close => break,
                    _ => {}
                }
            }
            drop(writer);
            Ending { status, said: said.text() }
        });
        Ok(Running::new(input, output, ending))
    }

    /// Where it leads: what `~/.ssh/config` makes of the name that was typed.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Says goodbye.
    pub async fn close(self) {
        let goodbye = self.handle.disconnect(Disconnect::ByApplication, "", "en");
        let _ = timeout(GOODBYE_MAX, goodbye).await;
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("host", &self.host).finish_non_exhaustive()
    }
}

fn told(signal: &Sig) -> Vec<u8> {
    format!("ended by signal {signal:?}").into_bytes()
}

fn known_hosts(settings: &Settings) -> Result<KnownHosts, SshError> {
    let mut known = KnownHosts::default();
    for path in settings.user_known_hosts.iter().chain(&settings.global_known_hosts) {
        // `/dev/null` is how some say that there is none.
        if path == Path::new("/dev/null") {
            continue;
        }
        if let Some(text) = read_text(path)? {
            known.add(path, &text);
        }
    }
    Ok(known)
}

/// Host keys of the kinds by which the host is known come first; none is proven with SHA-1.
fn preferred(known: &[&str]) -> Preferred {
    let mut kinds: Vec<Algorithm> = Preferred::DEFAULT.key.to_vec();
    kinds.retain(|kind| *kind != Algorithm::Rsa { hash: None });
    // known_hosts says ssh-rsa whatever the signature is made with.
    let name = |kind: &Algorithm| match kind {
        Algorithm::Rsa { .. } => "ssh-rsa".to_owned(),
        other => other.to_string(),
    };
    kinds.sort_by_key(|kind| !known.contains(&name(kind).as_str()));
    Preferred { key: Cow::Owned(kinds), ..Preferred::DEFAULT }
}

/// Looks at who the other side is. The library has checked by then that it holds the key.
pub(super) struct Door {
    known: KnownHosts,
    settings: Settings,
}

/// The library accepts channels that the server opens; dropping the reply refuses one.
macro_rules! refuse {
    ($($name:ident($($type:ty),*);)*) => {$(
        async fn $name(
            &mut self,
            _: Channel<Msg>,
            $(_: $type,)*
            _: ChannelOpenHandle,
            _: &mut Session,
        ) -> Result<(), SshError> {
            Ok(())
        }
    )*};
}

impl client::Handler for Door {
    type Error = SshError;

    refuse! {
        server_channel_open_session();
        server_channel_open_agent_forward();
        server_channel_open_x11(&str, u32);
        server_channel_open_direct_tcpip(&str, u32, &str, u32);
        server_channel_open_direct_streamlocal(&str);
        server_channel_open_forwarded_tcpip(&str, u32, &str, u32);
        server_channel_open_forwarded_streamlocal(&str);
    }

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, SshError> {
        let key = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => key,
            // Not asked for, so a server that sends one breaks the protocol.
            PublicKeyOrCertificate::Certificate(_) => return Ok(false),
        };
        let bytes = key.to_bytes().map_err(|error| SshError::Protocol(error.to_string()))?;
        let name = self.settings.known_as.clone();
        let fingerprint = key.fingerprint(HashAlg::Sha256).to_string();
        let kind = key.algorithm().to_string();
        match self.known.judge(&name, &bytes) {
            Verdict::Known => Ok(true),
            Verdict::New => {
                let base64 = data_encoding::BASE64.encode(&bytes);
                let file = self.settings.user_known_hosts.first().cloned();
                Err(SshError::NewHostKey(Box::new(NewHostKey {
                    name,
                    key: format!("{kind} {base64}"),
                    fingerprint,
                    file: file.unwrap_or_default(),
                    refused_by_config: self.settings.strict == StrictHostKeys::Yes,
                })))
            }
            Verdict::Changed(at) => Err(SshError::ChangedHostKey { name, kind, fingerprint, at }),
            Verdict::Revoked(at) => Err(SshError::RevokedHostKey { name, kind, fingerprint, at }),
            Verdict::Authority(at) => Err(SshError::Authority { name, at }),
        }
    }
}

const HELLO_MAX: Duration = Duration::from_secs(20);
const START_MAX: Duration = Duration::from_secs(20);
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// Three of them unanswered end the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const PIPE_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_for_a_key_that_is_known_and_never_for_sha1() {
        let names = |known: &[&str]| -> Vec<String> {
            preferred(known).key.iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(&[])[0], "ssh-ed25519");
        assert_eq!(names(&["ssh-rsa"])[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
        assert_eq!(names(&["ecdsa-sha2-nistp256"])[0], "ecdsa-sha2-nistp256");
        assert!(!names(&["ssh-rsa"]).contains(&"ssh-rsa".to_owned()));
    }
}

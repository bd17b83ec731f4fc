//! The agent that holds a user's keys: asks it which it has. It signs by [`super::login`]'s doing.

use std::path::Path;
use std::time::Duration;

use russh::keys::PublicKey;
use russh::keys::agent::client::AgentClient;
use russh::keys::agent::{AgentIdentity, AgentSessionBinding};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::shown;

/// An agent, and what it has.
pub(super) struct Agent {
    pub(super) client: AgentClient<UnixStream>,
    /// With their comments.
    pub(super) keys: Vec<(PublicKey, String)>,
    /// Comments of certificates, which are for servers that ask an authority.
    pub(super) certificates: Vec<String>,
}

impl Agent {
    /// The error says why it is of no use.
    pub(super) async fn open(
        socket: &Path,
        binding: Option<&AgentSessionBinding>,
    ) -> Result<Self, String> {
        let mut client = connect(socket).await?;
        // An agent may keep keys for certain servers; one that does not know the question is asked anew.
        if let Some(binding) = binding {
            let bound = timeout(ANSWER_MAX, client.bind_session(binding, false)).await;
            if !matches!(bound, Ok(Ok(()))) {
                client = connect(socket).await?;
            }
        }
        let told = timeout(ANSWER_MAX, client.request_identities()).await;
        let identities = told.map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
        let mut agent = Self { client, keys: Vec::new(), certificates: Vec::new() };
        for identity in identities {
            match identity {
                AgentIdentity::PublicKey { key, comment } => {
                    agent.keys.push((key, shown(&comment)));
                }
                AgentIdentity::Certificate { comment, .. } => {
                    agent.certificates.push(shown(&comment));
                }
            }
        }
        Ok(agent)
    }
}

async fn connect(socket: &Path) -> Result<AgentClient<UnixStream>, String> {
    let connected = timeout(ANSWER_MAX, AgentClient::connect_uds(socket)).await;
    connected.map_err(|_| "no answer")?.map_err(|error| error.to_string())
}

const ANSWER_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_none_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let why = Agent::open(&dir.path().join("none"), None).await.err().expect("not there");
        assert!(!why.is_empty());
        let socket = dir.path().join("agent");
        let listener = UnixListener::bind(&socket).expect("bound");
        let hangs_up = tokio::spawn(async move { drop(listener.accept().await) });
        assert!(Agent::open(&socket, None).await.is_err());
        hangs_up.await.expect("ended");
    }
}

//! Proving to another machine who we are: keys of the agent, key files, and what a person types. In
//! OpenSSH's order; a passphrase is asked only for a key that the server would take.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse as Answer, Prompt};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey};
use russh::{MethodKind, MethodSet, Signer};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::agent::Agent;
use super::client::Door;
use super::error::SshError;
use super::keys::{KeyFile, Secret, is_hardware, unlock};
use super::settings::Settings;
use super::shown;

/// The person at this machine's terminal.
pub trait Ask: Send {
    /// Asks one question and waits for the answer; none: nobody is there, or they do not want to.
    fn ask(&mut self, question: &str, echo: Echo) -> Option<String>;
    /// Whether somebody is there.
    fn is_there(&self) -> bool;
}

/// Whether what is typed may be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    Seen,
    Hidden,
}

/// One try to log in.
pub(super) struct Login<'a> {
    pub(super) handle: &'a mut Handle<Door>,
    pub(super) settings: &'a Settings,
    pub(super) ask: &'a mut dyn Ask,
    tried: Vec<String>,
    /// Tries that the server counts.
    count: usize,
}

/// What the server said to one proof.
enum Said {
    Welcome,
    /// What it would still take.
    No(MethodSet),
}

impl<'a> Login<'a> {
    pub(super) fn new(
        handle: &'a mut Handle<Door>,
        settings: &'a Settings,
        ask: &'a mut dyn Ask,
    ) -> Self {
        Self { handle, settings, ask, tried: Vec::new(), count: 0 }
    }

    pub(super) async fn run(mut self) -> Result<(), SshError> {
        let user = self.settings.user.clone();
        let none = timeout(ANSWER_MAX, self.handle.authenticate_none(user)).await;
        let Said::No(mut offers) = self.said(none)? else { return Ok(()) };
        let methods = self.settings.methods;
        for (kind, wanted) in [
            (MethodKind::PublicKey, methods.public_key),
            (MethodKind::KeyboardInteractive, methods.keyboard_interactive),
            (MethodKind::Password, methods.password),
        ] {
            if !wanted || !offers.contains(&kind) {
                continue;
            }
            let said = match kind {
                MethodKind::PublicKey => self.keys(&offers).await?,
                MethodKind::KeyboardInteractive => self.questions(&offers).await?,
                _ => self.password(&offers).await?,
            };
            match said {
                Said::Welcome => return Ok(()),
                // After a part was enough, it is what is left that counts.
                Said::No(now) => offers = now,
            }
        }
        Err(SshError::NotLetIn {
            user: self.settings.user.clone(),
            host: self.settings.host.clone(),
            tried: self.tried,
            offers: offers.iter().map(<&'static str>::from).collect(),
            asks: self.ask.is_there(),
        })
    }

    /// Keys of the agent that a file names too, then its others, then the files.
    async fn keys(&mut self, offers: &MethodSet) -> Result<Said, SshError> {
        let paths = &self.settings.identity_files;
        let mut files: Vec<KeyFile> = paths.iter().filter_map(|path| KeyFile::load(path)).collect();
        if self.settings.chosen {
            let there = |path: &PathBuf| files.iter().any(|file| file.path == *path);
            let missing = paths.iter().filter(|path| !there(path));
            self.tried.extend(missing.map(|path| format!("{} (not there)", path.display())));
        }
        let names_of_files: Vec<PublicKey> =
            files.iter().filter_map(|file| file.public.clone()).collect();
        let is_named =
            |key: &PublicKey| names_of_files.iter().any(|n| n.key_data() == key.key_data());
        let mut offers = offers.clone();
        let mut given = Vec::new();
        if let Some(Agent { mut client, mut keys, .. }) = self.agent().await {
            keys.retain(|(key, _)| !self.settings.identities_only || is_named(key));
            keys.sort_by_key(|(key, _)| !is_named(key));
            for (key, comment) in keys.into_iter().take(KEYS_MAX) {
                match self.agent_key(&mut client, &key, &comment, &offers).await? {
                    Said::Welcome => return Ok(Said::Welcome),
                    Said::No(now) => offers = now,
                }
                given.push(key);
                if !offers.contains(&MethodKind::PublicKey) {
                    return Ok(Said::No(offers));
                }
            }
        }
        let is_given = |file: &KeyFile| {
            let key = file.public.as_ref();
            key.is_some_and(|key| given.iter().any(|g| g.key_data() == key.key_data()))
        };
        files.retain(|file| !is_given(file));
        for file in files.into_iter().take(KEYS_MAX) {
            match self.file(file, &offers).await? {
                Said::Welcome => return Ok(Said::Welcome),
                Said::No(now) => offers = now,
            }
            if !offers.contains(&MethodKind::PublicKey) {
                break;
            }
        }
        Ok(Said::No(offers))
    }

    /// The agent, where there is one that answers.
    async fn agent(&mut self) -> Option<Agent> {
        let socket = self.settings.agent.as_ref()?;
        match Agent::open(socket, self.handle.agent_session_binding()).await {
            Ok(agent) => {
                let only =
                    |comment| format!("agent certificate {comment} (only with --ssh system)");
                self.tried.extend(agent.certificates.iter().map(only));
                Some(agent)
            }
            Err(why) => {
                self.tried.push(format!("the agent at {} ({why})", socket.display()));
                None
            }
        }
    }

    async fn agent_key(
        &mut self,
        agent: &mut AgentClient<UnixStream>,
        key: &PublicKey,
        comment: &str,
        offers: &MethodSet,
    ) -> Result<Said, SshError> {
        let name = format!("agent key {comment}");
        if is_hardware(&key.algorithm()) {
            self.tried.push(format!("{name} (on hardware: --ssh system)"));
            return Ok(Said::No(offers.clone()));
        }
        let Some(hash) = self.hash_for(key).await else {
            self.tried.push(format!("{name} (only with SHA-1, which is broken)"));
            return Ok(Said::No(offers.clone()));
        };
        self.tried.push(name.clone());
        let user = self.settings.user.clone();
        let proof = self.handle.authenticate_publickey_with(user, key.clone(), hash, agent);
        match timeout(SIGN_MAX, proof).await {
            Ok(Ok(result)) => self.result(result),
            // It holds the key and does not sign, or not in time: the next one may.
            Ok(Err(error)) => {
                self.replace_last(format!("{name} ({error})"));
                Ok(Said::No(offers.clone()))
            }
            Err(_) => Err(self.late("agree to sign")),
        }
    }

    async fn file(&mut self, file: KeyFile, offers: &MethodSet) -> Result<Said, SshError> {
        let name = file.path.display().to_string();
        let no = |login: &mut Self, why: &str| {
            login.tried.push(format!("{name} ({why})"));
            Ok(Said::No(offers.clone()))
        };
        if file.is_on_hardware() {
            return no(self, "on hardware: --ssh system");
        }
        match file.secret {
            Secret::Unusable(why) => no(self, &why),
            Secret::Elsewhere => no(self, "a public key, and no agent has the other half"),
            Secret::Open(key) => self.prove(key, &name, offers).await,
            Secret::Locked(text) => {
                if let Some(public) = &file.public
                    && let Said::No(now) = self.would_take(public, &name).await?
                {
                    return Ok(Said::No(now));
                }
                let Some(key) = self.unlock(&text, &name) else {
                    let why = if self.asks() {
                        "its passphrase is another one"
                    } else {
                        "it has a passphrase"
                    };
                    self.tried.retain(|tried| *tried != name);
                    return no(self, why);
                };
                self.tried.retain(|tried| *tried != name);
                self.prove(key, &name, offers).await
            }
        }
    }

    /// Whether the server would take the key, before a passphrase is asked for it.
    async fn would_take(&mut self, key: &PublicKey, name: &str) -> Result<Said, SshError> {
        let hash = self.hash_for(key).await.flatten();
        self.tried.push(name.to_owned());
        let (user, mut probe) = (self.settings.user.clone(), Probe);
        let proof = self.handle.authenticate_publickey_with(user, key.clone(), hash, &mut probe);
        match timeout(ANSWER_MAX, proof).await {
            Ok(Ok(result)) => self.result(result),
            Ok(Err(Asked)) => Ok(Said::Welcome),
            Err(_) => Err(self.late("answer")),
        }
    }

    fn unlock(&mut self, text: &str, name: &str) -> Option<Arc<PrivateKey>> {
        for _ in 0..TYPED_MAX {
            let passphrase = self.typed(&format!("Passphrase of {name}: "), Echo::Hidden)?;
            if let Some(key) = unlock(text, &passphrase) {
                return Some(key);
            }
        }
        None
    }

    async fn prove(
        &mut self,
        key: Arc<PrivateKey>,
        name: &str,
        offers: &MethodSet,
    ) -> Result<Said, SshError> {
        let Some(hash) = self.hash_for(key.public_key()).await else {
            self.tried.push(format!("{name} (only with SHA-1, which is broken)"));
            return Ok(Said::No(offers.clone()));
        };
        self.tried.push(name.to_owned());
        let (user, key) = (self.settings.user.clone(), PrivateKeyWithHashAlg::new(key, hash));
        let result = timeout(ANSWER_MAX, self.handle.authenticate_publickey(user, key)).await;
        self.said(result)
    }

    /// With which hash a key signs: SHA-2 for RSA, none for the others. None at all: the server takes RSA
    /// with SHA-1 alone.
    async fn hash_for(&mut self, key: &PublicKey) -> Option<Option<HashAlg>> {
        if !matches!(key.algorithm(), Algorithm::Rsa { .. }) {
            return Some(None);
        }
        match self.handle.best_supported_rsa_hash().await {
            Ok(Some(Some(hash))) => Some(Some(hash)),
            Ok(Some(None)) => None,
            // It does not say; all of the last ten years can do this.
            Ok(None) | Err(_) => Some(Some(HashAlg::Sha256)),
        }
    }

    /// What the server asks, as a Mac does for its password.
    async fn questions(&mut self, offers: &MethodSet) -> Result<Said, SshError> {
        let mut offers = offers.clone();
        for _ in 0..TYPED_MAX {
            if !self.asks() || !offers.contains(&MethodKind::KeyboardInteractive) {
                break;
            }
            match self.one_round_of_questions().await? {
                Said::Welcome => return Ok(Said::Welcome),
                Said::No(now) => offers = now,
            }
        }
        Ok(Said::No(offers))
    }

    async fn one_round_of_questions(&mut self) -> Result<Said, SshError> {
        let user = self.settings.user.clone();
        let start = self.handle.authenticate_keyboard_interactive_start(user, None);
        let mut answer = timeout(ANSWER_MAX, start).await;
        self.tried.push("keyboard-interactive".to_owned());
        for _ in 0..ROUNDS_MAX {
            let asked = match answer {
                Err(_) => return Err(self.late("answer")),
                Ok(Err(error)) => return Err(self.lost(&error)),
                Ok(Ok(Answer::Success)) => return Ok(Said::Welcome),
                Ok(Ok(Answer::Failure { remaining_methods, .. })) => {
                    return self.refused(remaining_methods);
                }
                Ok(Ok(Answer::InfoRequest { prompts, .. })) => prompts,
            };
            let typed = self.answers(&asked);
            let respond = self.handle.authenticate_keyboard_interactive_respond(typed);
            answer = timeout(ANSWER_MAX, respond).await;
        }
        Err(SshError::Protocol(format!("the server asks more than {ROUNDS_MAX} times")))
    }

    /// One for each, empty where nobody answers: the protocol wants as many as were asked.
    fn answers(&mut self, prompts: &[Prompt]) -> Vec<String> {
        let host = self.settings.host.clone();
        let answer = |prompt: &Prompt| {
            let echo = if prompt.echo { Echo::Seen } else { Echo::Hidden };
            self.typed(&format!("{host} asks: {} ", shown(&prompt.prompt)), echo)
                .unwrap_or_default()
        };
        prompts.iter().map(answer).collect()
    }

    async fn password(&mut self, offers: &MethodSet) -> Result<Said, SshError> {
        let mut offers = offers.clone();
        let Settings { user, host, .. } = self.settings.clone();
        for _ in 0..TYPED_MAX {
            if !offers.contains(&MethodKind::Password) {
                break;
            }
            let Some(password) = self.typed(&format!("Password of {user}@{host}: "), Echo::Hidden)
            else {
                break;
            };
            self.tried.push("password".to_owned());
            let result =
                timeout(ANSWER_MAX, self.handle.authenticate_password(&user, password)).await;
            match self.said(result)? {
                Said::Welcome => return Ok(Said::Welcome),
                Said::No(now) => offers = now,
            }
        }
        Ok(Said::No(offers))
    }

    fn asks(&self) -> bool {
        !self.settings.batch && self.ask.is_there()
    }

    /// Waits for a person, on this thread; the connection goes on on another one.
    fn typed(&mut self, question: &str, echo: Echo) -> Option<String> {
        if !self.asks() {
            return None;
        }
        tokio::task::block_in_place(|| self.ask.ask(question, echo))
    }

    fn said(
        &mut self,
        result: Result<Result<AuthResult, russh::Error>, tokio::time::error::Elapsed>,
    ) -> Result<Said, SshError> {
        match result {
            Ok(Ok(result)) => self.result(result),
            Ok(Err(error)) => Err(self.lost(&error)),
            Err(_) => Err(self.late("answer")),
        }
    }

    fn result(&mut self, result: AuthResult) -> Result<Said, SshError> {
        match result {
            AuthResult::Success => Ok(Said::Welcome),
            AuthResult::Failure { remaining_methods, .. } => self.refused(remaining_methods),
        }
    }

    fn refused(&mut self, offers: MethodSet) -> Result<Said, SshError> {
        self.count += 1;
        // The library tells the end of the connection as a failure without a way on.
        if self.handle.is_closed() {
            let tried = std::mem::take(&mut self.tried);
            let (host, count) = (self.settings.host.clone(), self.count);
            return Err(SshError::TooManyTries { host, count, tried });
        }
        Ok(Said::No(offers))
    }

    fn replace_last(&mut self, text: String) {
        self.tried.pop();
        self.tried.push(text);
    }

    fn late(&self, what: &'static str) -> SshError {
        let host = self.settings.host.clone();
        SshError::TimedOut { host, what, seconds: ANSWER_MAX.as_secs() }
    }

    fn lost(&self, error: &russh::Error) -> SshError {
        SshError::Lost { host: self.settings.host.clone(), why: error.to_string() }
    }
}

/// Signs nothing: being asked to is the answer.
struct Probe;

/// The server asked for a signature, so it would take the key.
struct Asked;

impl From<russh::SendError> for Asked {
    fn from(_: russh::SendError) -> Self {
        Self
    }
}

impl Signer for Probe {
    type Error = Asked;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        _: Option<HashAlg>,
        _: Vec<u8>,
    ) -> Result<Vec<u8>, Asked> {
        Err(Asked)
    }
}

/// PAM may look up a name or delay a wrong password for some seconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// An agent may ask the person to agree.
const SIGN_MAX: Duration = Duration::from_mins(1);
/// How often a passphrase or a password is asked.
const TYPED_MAX: usize = 3;
const ROUNDS_MAX: usize = 8;
/// Servers end a connection after six.
const KEYS_MAX: usize = 16;

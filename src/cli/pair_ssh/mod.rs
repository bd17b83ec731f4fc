//! `daisy cluster pair USER@HOST`: makes this node and another machine's know each other, over SSH.
//! [`scripts`] is what is run there, [`super::introduction`] what the two nodes tell each other,
//! [`bundle`] what `--install` copies. Start at [`PairOverSsh::run`], and at [`meeting`] for what makes both
//! sides keep the other or neither.

mod bundle;
mod copy;
mod host_key;
mod meeting;
mod person;
mod scripts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use daisy_proto::local::{Refusal, RefusalKind};

use self::bundle::Bundle;
use self::copy::install;
use self::host_key::accept;
use self::meeting::{LINE_MAX, Met, meet};
use self::person::Person;
use super::cluster::runtime;
use super::introduction::Introduced;
use super::{Failure, render};
use crate::ssh::{Client, Destination, Running, Settings, SshError, SystemSsh, User, connect};

/// What was asked for.
#[derive(Debug)]
pub(super) struct PairOverSsh {
    pub(super) to: Destination,
    /// Whether the machine's own `ssh` does it.
    pub(super) by_system: bool,
    pub(super) install: bool,
    /// The fingerprint that a new host key must have to be accepted unasked.
    pub(super) accept: Option<String>,
}

/// A way to run commands there.
enum Remote {
    Own(Client),
    System(SystemSsh),
}

impl PairOverSsh {
    pub(super) fn run(self, home: &Path) -> Result<(), Failure> {
        let runtime = runtime()?;
        let outcome = runtime.block_on(self.pair(home));
        runtime.shutdown_background();
        outcome
    }

    async fn pair(self, home: &Path) -> Result<(), Failure> {
        let own = Introduced::own(home).await?;
        // Before anybody is asked for a password.
        let bundle = if self.install { Some(Bundle::here()?) } else { None };
        let there = self.to.host.clone();
        let remote = self.reach().await?;
        let paired = match meet(&remote, scripts::PLACES, &own, home, &there).await? {
            Met::Paired(peer) => peer,
            Met::NeedsDaisy { system, why } => {
                let Some(bundle) = bundle else { return Err(Failure::Refused(why)) };
                install(&remote, &bundle, home, &there, &system).await?;
                match meet(&remote, scripts::INSTALLED, &own, home, &there).await? {
                    Met::Paired(peer) => peer,
                    Met::NeedsDaisy { why, .. } => return Err(Failure::Refused(why)),
                }
            }
        };
        let mut address = there.clone();
        if let Remote::Own(client) = remote {
            client.host().clone_into(&mut address);
            client.close().await;
        }
        render::paired(&paired.id, &paired.name);
        if paired.build != own.build {
            render::note(&format!("{there} has {}, this machine {}", paired.build, own.build));
        }
        render::paired_over_ssh(&address, own.port.is_some(), paired.port);
        Ok(())
    }

    async fn reach(&self) -> Result<Remote, Failure> {
        if self.by_system {
            return Ok(Remote::System(SystemSsh::new(self.to.clone())));
        }
        let user = user()?;
        let settings = Settings::load(&self.to, &user)?;
        if settings.user.is_empty() {
            return Err(Failure::usage(format!("as whom? Write USER@{}", self.to.host)));
        }
        let mut person = Person::here();
        let new = match connect(&settings, None, &mut person).await {
            Ok(client) => return Ok(Remote::Own(client)),
            Err(SshError::NewHostKey(new)) => {
                accept(self.accept.as_deref(), new, &settings, &mut person)?
            }
            Err(error) => return Err(error.into()),
        };
        let client = connect(&settings, Some(&new), &mut person).await;
        Ok(Remote::Own(client?))
    }
}

impl Remote {
    async fn start(&self, command: &str) -> Result<Running, Failure> {
        match self {
            Self::Own(client) => Ok(client.start(command).await?),
            Self::System(ssh) => Ok(ssh.start(command)?),
        }
    }

    /// A person may have to type a password into the system's `ssh` before anything comes.
    fn first_line_max(&self) -> Duration {
        match self {
            Self::Own(_) => LINE_MAX,
            Self::System(_) => TYPING_MAX,
        }
    }
}

impl From<SshError> for Failure {
    fn from(error: SshError) -> Self {
        let kind = match &error {
            error if error.is_unreachable() => RefusalKind::NotReachable,
            SshError::Config { .. } => RefusalKind::Usage,
            _ => RefusalKind::CannotBeDone,
        };
        Self::Refused(Refusal { message: error.to_string(), hints: error.hints(), kind })
    }
}

fn user() -> Result<User, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let home = std::env::home_dir();
    let home = home.ok_or_else(|| Failure::usage("no home directory is known; set HOME"))?;
    let name = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_default();
    Ok(User { name, home, agent: variable("SSH_AUTH_SOCK").map(PathBuf::from), variable })
}

/// For somebody who types a password.
const TYPING_MAX: Duration = Duration::from_mins(5);

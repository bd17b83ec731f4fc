//! `daisy cluster pair USER@HOST`: makes this node and another machine's know each other, over SSH.
//! [`scripts`] is what is run there, [`super::introduction`] what the two nodes tell each other,
//! [`bundle`] what `--install` copies. Start at [`PairOverSsh::run`].

mod bundle;
mod person;
mod scripts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use daisy_proto::NodeName;
use daisy_proto::local::{Refusal, RefusalKind};
use tokio::time::timeout;

use self::bundle::Bundle;
use self::person::Person;
use self::scripts::Report;
use super::cluster::runtime;
use super::introduction::{Introduced, Unfit, Why, Word, Written, refusal};
use super::signals::Signals;
use super::{Failure, render};
use crate::identity::Peers;
use crate::node;
use crate::ssh::{
    Ask, Client, Destination, Ending, Line, NewHostKey, Running, Settings, SshError, SystemSsh,
    User, connect, shown,
};

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

/// How one try to introduce the two ended.
enum Tried {
    Paired(Introduced),
    /// There is none, or one that cannot be paired: what `--install` is for.
    NeedsDaisy {
        system: String,
        why: Refusal,
    },
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
        let paired = match introduce(&remote, scripts::PLACES, &own, home, &there).await? {
            Tried::Paired(peer) => peer,
            Tried::NeedsDaisy { system, why } => {
                let Some(bundle) = bundle else { return Err(Failure::Refused(why)) };
                install(&remote, &bundle, home, &there, &system).await?;
                match introduce(&remote, scripts::INSTALLED, &own, home, &there).await? {
                    Tried::Paired(peer) => peer,
                    Tried::NeedsDaisy { why, .. } => return Err(Failure::Refused(why)),
                }
            }
        };
        if let Remote::Own(client) = remote {
            client.close().await;
        }
        render::paired(&paired.id, &paired.name);
        if paired.build != own.build {
            render::note(&format!("{there} has {}, this machine {}", paired.build, own.build));
        }
        render::paired_over_ssh(&there, own.port.is_some(), paired.port);
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
            Err(SshError::NewHostKey(new)) => self.accept(new, &settings, &mut person)?,
            Err(error) => return Err(error.into()),
        };
        let client = connect(&settings, Some(&new), &mut person).await;
        Ok(Remote::Own(client?))
    }

    /// Remembers a new host's key, if somebody has said that it is the right one.
    fn accept(
        &self,
        new: Box<NewHostKey>,
        settings: &Settings,
        person: &mut Person,
    ) -> Result<Box<NewHostKey>, Failure> {
        let refused =
            |message: String, hint: &str| Err(Failure::Refused(refusal(message, &[hint])));
        match &self.accept {
            Some(wanted) if *wanted == new.fingerprint => {}
            Some(wanted) => {
                let message = format!(
                    "{} shows the {} key {}, and --accept-new-host-key says {wanted}",
                    new.name(),
                    new.kind(),
                    new.fingerprint
                );
                return refused(message, "nothing was accepted: is it another machine?");
            }
            None if new.refused_by_config => {
                let message = SshError::NewHostKey(new).to_string();
                return refused(
                    message,
                    "StrictHostKeyChecking in ~/.ssh/config says that nobody is asked",
                );
            }
            None if settings.batch || !person.is_there() => {
                return Err(SshError::NewHostKey(new).into());
            }
            None => {
                let (name, kind) = (new.name(), new.kind());
                let question = format!(
                    "{name} is not known yet. It shows the {kind} key\n  {}\nIs that its key?",
                    new.fingerprint
                );
                if !person.agrees(&question) {
                    return refused(
                        format!("{name} was not accepted; nothing was changed"),
                        "`ssh-keygen -lf` there, of /etc/ssh/ssh_host_*_key.pub, shows its fingerprints",
                    );
                }
            }
        }
        // Some keep none of them, as for machines that are set up anew each day.
        if [Path::new(""), Path::new("/dev/null")].contains(&new.file()) {
            return Ok(new);
        }
        new.remember().map_err(|error| {
            anyhow::anyhow!("cannot write the host key to {}: {error}", new.file().display())
        })?;
        render::note(&format!("{} is known from now on ({})", new.name(), new.file().display()));
        Ok(new)
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

/// What was heard before the other node introduced itself.
#[derive(Debug, Default)]
struct Heard {
    /// As `uname -sm` has it.
    system: String,
    /// Where `daisy` is, and what it says to `--version`.
    found: String,
    version: String,
}

/// Finds Daisy there, and exchanges keys with it: both nodes know each other afterwards, or neither.
async fn introduce(
    remote: &Remote,
    places: &str,
    own: &Introduced,
    home: &Path,
    there: &str,
) -> Result<Tried, Failure> {
    let mut running = remote.start(&scripts::introduce(places)).await?;
    // Sent at once: whoever is not there does not read it.
    let _ = running.send(own.written().encode().as_bytes(), LINE_MAX).await;
    let mut heard = Heard::default();
    let hearing = hear(&mut running, remote.first_line_max(), &mut heard);
    let last = match timeout(remote.first_line_max() + HEAR_MAX, hearing).await {
        Ok(last) => last,
        Err(_) => Err(Line::Late),
    };
    let written = match last {
        Ok(Said::Missing) => {
            let message = format!(
                "there is no `daisy` on {there}: not in PATH, ~/.local/bin, /opt/homebrew/bin or \
                 /usr/local/bin"
            );
            let why = refusal(message, &INSTALL_HINTS);
            return Ok(Tried::NeedsDaisy { system: heard.system, why });
        }
        Ok(Said::Refused(why)) => return Err(Failure::Refused(theirs(there, &why))),
        Ok(Said::Introduction(written)) => written,
        Err(line) => {
            let ending = running.end(END_MAX).await;
            return without_a_word(there, heard, cut(&line), &ending);
        }
    };
    let peer = match written.read(own.id, there) {
        Ok(peer) => peer,
        // It can be replaced; nothing was kept there.
        Err(Unfit::Older(why)) => return Ok(Tried::NeedsDaisy { system: heard.system, why }),
        Err(unfit) => return Err(Failure::Refused(unfit.into())),
    };
    keep(running, &peer, home, there).await?;
    Ok(Tried::Paired(peer))
}

/// What ends the search for the other node.
enum Said {
    Missing,
    Introduction(Written),
    Refused(Why),
}

/// Reads up to what counts; a line that is none is the error.
async fn hear(running: &mut Running, first: Duration, heard: &mut Heard) -> Result<Said, Line> {
    let mut max = first;
    // A shell may greet at length, but not without end.
    for _ in 0..LINES_MAX {
        let line = running.line(max).await;
        max = LINE_MAX;
        let text = match line {
            Line::Text(text) => text,
            Line::Nonsense if heard.found.is_empty() => continue,
            other => return Err(other),
        };
        match Report::parse(&text) {
            Some(Report::System(uname)) => heard.system = uname,
            Some(Report::Found(path)) => heard.found = path,
            Some(Report::Version(said)) => heard.version = said,
            Some(Report::Missing) => return Ok(Said::Missing),
            _ => match Word::decode(&text) {
                Some(Word::Introduction(written)) => return Ok(Said::Introduction(written)),
                Some(Word::Refused(why)) => return Ok(Said::Refused(why)),
                _ => {}
            },
        }
    }
    Err(Line::Nonsense)
}

/// First here, then there; what was kept here is taken back unless the other side has done it too.
async fn keep(
    mut running: Running,
    peer: &Introduced,
    home: &Path,
    there: &str,
) -> Result<(), Failure> {
    // From here on a Ctrl+C must not leave half of it.
    let mut signals = Signals::new()?;
    let is_new = node::remember(home, peer.id, Some(&peer.name)).map_err(anyhow::Error::from)?;
    let asking = async {
        match running.send(Word::Keep.encode().as_bytes(), LINE_MAX).await {
            Ok(()) => running.line(LINE_MAX).await,
            Err(_) => Line::End,
        }
    };
    let answer = tokio::select! {
        answer = asking => Some(answer),
        () = signals.next() => None,
    };
    let word = match &answer {
        Some(Line::Text(text)) => Word::decode(text),
        _ => None,
    };
    if word == Some(Word::Kept) {
        return Ok(());
    }
    take_back(home, peer, is_new)?;
    Err(Failure::Refused(match (word, answer) {
        (Some(Word::Refused(why)), _) => theirs(there, &why),
        (_, None) => broken_off(there, &peer.name, "it was interrupted", is_new),
        (_, Some(line)) => broken_off(there, &peer.name, cut(&line), is_new),
    }))
}

fn take_back(home: &Path, peer: &Introduced, is_new: bool) -> Result<(), Failure> {
    if is_new {
        let taken = Peers::load(home).and_then(|mut peers| peers.untrust(&peer.id));
        taken.map_err(anyhow::Error::from)?;
    }
    Ok(())
}

fn broken_off(there: &str, name: &NodeName, why: &str, is_new: bool) -> Refusal {
    let message = format!("pairing with {there} broke off at its last word: {why}");
    let here = if is_new { "this node does not know it" } else { "this node knows it as before" };
    let once_more = format!("{here}; pairing once more puts both sides right");
    let or = format!(
        "or take it back there, in case it had kept this node's key: `daisy cluster peers` on {name} \
         shows it, `daisy cluster unpair` ends it"
    );
    Refusal { hints: vec![once_more, or], kind: RefusalKind::NotReachable, ..refusal(message, &[]) }
}

/// Why no introduction came.
fn without_a_word(there: &str, heard: Heard, why: &str, ending: &Ending) -> Result<Tried, Failure> {
    let Heard { system, found, version } = heard;
    let said = last_line(&ending.said);
    if found.is_empty() {
        let message = match ending.status {
            // 255, or a connection that is gone.
            None => format!("SSH to {there} ended before anything ran there{said}"),
            Some(_) => format!("no POSIX shell answers on {there}: {why}{said}"),
        };
        let hints = &["what `ssh` or the shell there says stands above, if anything"];
        let kind = RefusalKind::NotReachable;
        return Err(Failure::Refused(Refusal { kind, ..refusal(message, hints) }));
    }
    if version.is_empty() && ending.status.is_some() {
        let message = format!("{found} on {there} does not start{said}");
        return Ok(Tried::NeedsDaisy { system, why: refusal(message, &INSTALL_HINTS) });
    }
    // clap's answer to a command that it does not know.
    if ending.status == Some(2) {
        let message = format!(
            "{found} on {there} is {version}, which cannot be paired over SSH; this machine has {}",
            node::BUILD
        );
        return Ok(Tried::NeedsDaisy { system, why: refusal(message, &INSTALL_HINTS) });
    }
    let message = format!("{found} on {there} did not introduce itself: {why}{said}");
    let hints = &["nothing was kept on either side; try again"];
    let kind = RefusalKind::NotReachable;
    Err(Failure::Refused(Refusal { kind, ..refusal(message, hints) }))
}

/// Copies this machine's package there and installs it.
async fn install(
    remote: &Remote,
    bundle: &Bundle,
    home: &Path,
    there: &str,
    system: &str,
) -> Result<(), Failure> {
    Bundle::check(there, system)?;
    let mut packed = bundle.pack(home)?;
    render::copying(there, packed.bytes);
    let mut running = remote.start(&scripts::install(&packed.sha256)).await?;
    let mut is_sent = true;
    loop {
        let piece = packed.read().map_err(anyhow::Error::from)?;
        if piece.is_empty() {
            break;
        }
        if running.send(&piece, SEND_MAX).await.is_err() {
            // It says why, if it still can.
            is_sent = false;
            break;
        }
    }
    running.close_input().await;
    let why = loop {
        // Its `install` talks on standard error, so little comes here.
        match running.line(INSTALL_MAX).await {
            Line::Text(text) => match Report::parse(&text) {
                Some(Report::Installed) if is_sent => {
                    render::note(&format!("daisy is installed on {there}"));
                    return Ok(());
                }
                Some(Report::Damaged) => {
                    break "what arrived is not what was sent, and was thrown away".to_owned();
                }
                Some(Report::Cannot(what)) => break format!("it cannot {what}"),
                _ => {}
            },
            Line::Nonsense => {}
            other => break cut(&other).to_owned(),
        }
    };
    let said = running.end(END_MAX).await.said;
    let lines: Vec<String> = said.lines().map(shown).filter(|line| !line.is_empty()).collect();
    let hints: Vec<&str> = lines.iter().map(|line| line.trim_start_matches("hint: ")).collect();
    let message = format!("daisy was not installed on {there}: {why}; what was there is as it was");
    Err(Failure::Refused(refusal(message, &hints)))
}

fn cut(line: &Line) -> &'static str {
    match line {
        Line::Late => "it said nothing for too long",
        Line::Nonsense => "it said what is no text",
        Line::End => "the connection ended",
        Line::Text(_) => "it spoke out of turn",
    }
}

/// A refusal that comes from the other machine, as text that can be shown.
fn theirs(there: &str, why: &Why) -> Refusal {
    let hints: Vec<String> = why
        .hints
        .iter()
        .take(HINTS_MAX)
        .map(|hint| format!("on {there}: {}", shown(hint)))
        .collect();
    Refusal { hints, ..refusal(format!("{there} says: {}", shown(&why.message)), &[]) }
}

fn last_line(said: &str) -> String {
    let last = said.lines().map(shown).rfind(|line| !line.is_empty());
    last.map(|line| format!(": {line}")).unwrap_or_default()
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

const INSTALL_HINTS: [&str; 2] = [
    "--install copies this machine's Daisy there, if both are of one kind",
    "or install it there as it was here, and pair again",
];
const HINTS_MAX: usize = 4;
/// A login shell may be slow to start, the rest is quick.
const LINE_MAX: Duration = Duration::from_secs(30);
const TYPING_MAX: Duration = Duration::from_mins(5);
/// For all that comes after the first line.
const HEAR_MAX: Duration = Duration::from_mins(1);
const LINES_MAX: usize = 1000;
const END_MAX: Duration = Duration::from_secs(5);
/// For one piece: a link slower than this is none.
const SEND_MAX: Duration = Duration::from_mins(1);
/// Unpacking some hundred MB, and a first start.
const INSTALL_MAX: Duration = Duration::from_mins(5);

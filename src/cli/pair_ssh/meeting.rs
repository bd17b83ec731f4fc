//! The two nodes meet: Daisy is found there, they introduce themselves, and both keep the other or
//! neither does. Start at [`meet`].

use std::path::Path;
use std::time::Duration;

use daisy_proto::NodeName;
use daisy_proto::local::{Refusal, RefusalKind};
use tokio::time::timeout;

use super::Remote;
use super::scripts::{self, Report};
use crate::cli::Failure;
use crate::cli::introduction::{Introduced, Unfit, Why, Word, Written, refusal};
use crate::cli::signals::Signals;
use crate::identity::Peers;
use crate::node;
use crate::ssh::{Ending, Line, Running, shown};

/// How it ended.
pub(super) enum Met {
    Paired(Introduced),
    /// There is none, or one that cannot be paired: what `--install` is for.
    NeedsDaisy {
        system: String,
        why: Refusal,
    },
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
pub(super) async fn meet(
    remote: &Remote,
    places: &str,
    own: &Introduced,
    home: &Path,
    there: &str,
) -> Result<Met, Failure> {
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
            return Ok(Met::NeedsDaisy { system: heard.system, why });
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
        Err(Unfit::Older(why)) => return Ok(Met::NeedsDaisy { system: heard.system, why }),
        Err(unfit) => return Err(Failure::Refused(unfit.into())),
    };
    keep(running, &peer, home, there).await?;
    Ok(Met::Paired(peer))
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
fn without_a_word(there: &str, heard: Heard, why: &str, ending: &Ending) -> Result<Met, Failure> {
    let Heard { system, found, version } = heard;
    let said = last_line(&ending.said);
    if found.is_empty() {
        let message = match ending.status {
            // 255, or a connection that is gone.
            None => format!("SSH to {there} ended before anything ran there{said}"),
            Some(_) => format!("no POSIX shell answers on {there}: {why}{said}"),
        };
        let hints = &["is the account there one with a shell, and one that SSH lets in?"];
        let kind = RefusalKind::NotReachable;
        return Err(Failure::Refused(Refusal { kind, ..refusal(message, hints) }));
    }
    if version.is_empty() && ending.status.is_some() {
        let message = format!("{found} on {there} does not start{said}");
        return Ok(Met::NeedsDaisy { system, why: refusal(message, &INSTALL_HINTS) });
    }
    // clap's answer to a command that it does not know.
    if ending.status == Some(2) {
        let message = format!(
            "{found} on {there} is {version}, which cannot be paired over SSH; this machine has {}",
            node::BUILD
        );
        return Ok(Met::NeedsDaisy { system, why: refusal(message, &INSTALL_HINTS) });
    }
    let message = format!("{found} on {there} did not introduce itself: {why}{said}");
    let hints = &["nothing was kept on either side; try again"];
    let kind = RefusalKind::NotReachable;
    Err(Failure::Refused(Refusal { kind, ..refusal(message, hints) }))
}

/// What came in the place of a line that counts.
pub(super) fn cut(line: &Line) -> &'static str {
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

const INSTALL_HINTS: [&str; 2] = [
    "--install copies this machine's Daisy there, if both are of one kind",
    "or install it there as it was here, and pair again",
];
const HINTS_MAX: usize = 4;
/// For all that comes after the first line.
const HEAR_MAX: Duration = Duration::from_mins(1);
const LINES_MAX: usize = 1000;
/// A login shell may be slow to start, the rest is quick.
pub(super) const LINE_MAX: Duration = Duration::from_secs(30);
pub(super) const END_MAX: Duration = Duration::from_secs(5);

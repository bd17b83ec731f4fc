//! `daisy cluster introduce`, hidden: the other end of `daisy cluster pair user@host`. It is started over
//! SSH, so whoever speaks to it may do here what this user may; it still does only this one thing.
//! Nothing is kept before the word comes to keep it.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use super::cluster::runtime;
use super::introduction::{Introduced, Why, Word, refusal};
use super::{Failure, render};
use crate::identity::Peers;
use crate::node;

pub(crate) fn run(home: &Path) -> Result<(), Failure> {
    if std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "this is for `daisy cluster pair USER@HOST` on another machine",
        ));
    }
    let said = speak(home);
    if let Err(Failure::Refused(refusal)) = &said {
        let why = Why { message: refusal.message.clone(), hints: refusal.hints.clone() };
        // Who is gone cannot be told.
        let _ = say(&Word::Refused(why));
    }
    said
}

fn speak(home: &Path) -> Result<(), Failure> {
    let own = runtime()?.block_on(Introduced::own(home))?;
    let words = words();
    let peer = match next(&words)? {
        Word::Introduction(written) => {
            let read = written.read(own.id, "the machine that pairs");
            read.map_err(|unfit| Failure::Refused(unfit.into()))?
        }
        _ => return Err(out_of_turn()),
    };
    say(&own.written())?;
    match next(&words)? {
        Word::Keep => {}
        _ => return Err(out_of_turn()),
    }
    let is_new = node::remember(home, peer.id, Some(&peer.name))
        .map_err(|error| cannot(&error.to_string()))?;
    let told = say(&Word::Kept);
    if told.is_err() && is_new {
        // The other side will not count this node as paired, so neither does this one.
        let forgotten = Peers::load(home).and_then(|mut peers| peers.untrust(&peer.id));
        forgotten.map_err(anyhow::Error::from)?;
    }
    told
}

fn say(word: &Word) -> Result<(), Failure> {
    render::word(&word.encode()).map_err(|error| anyhow::Error::from(error).into())
}

fn next(words: &Receiver<Option<Word>>) -> Result<Word, Failure> {
    match words.recv_timeout(WORD_MAX) {
        Ok(Some(word)) => Ok(word),
        Ok(None) => Err(cannot("what it was told is no introduction")),
        Err(_) => Err(cannot("the machine that pairs went away; nothing was kept")),
    }
}

/// Lines of standard input, read by a thread: a read cannot be given a deadline.
fn words() -> Receiver<Option<Word>> {
    let (sender, words) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        loop {
            let mut line = String::new();
            match input.by_ref().take(INPUT_BYTES_MAX).read_line(&mut line) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
            // A line that was cut is none.
            let word = line.strip_suffix('\n').and_then(Word::decode);
            if sender.send(word).is_err() {
                return;
            }
        }
    });
    words
}

fn out_of_turn() -> Failure {
    cannot("the machine that pairs spoke out of turn")
}

fn cannot(message: &str) -> Failure {
    Failure::Refused(refusal(message.to_owned(), &[]))
}

/// The other side does nothing in between that takes long.
const WORD_MAX: Duration = Duration::from_mins(1);
const INPUT_BYTES_MAX: u64 = 16 * 1024;

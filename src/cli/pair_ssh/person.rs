//! The person at the terminal, if there is one.

use std::io::IsTerminal;

use crate::cli::render;
use crate::ssh::{Ask, Echo};

/// Questions go to standard error, so both must be a terminal.
#[derive(Debug)]
pub(super) struct Person {
    is_there: bool,
}

impl Person {
    pub(super) fn here() -> Self {
        let is_there = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        Self { is_there }
    }

    /// Whether they write out `yes`.
    pub(super) fn agrees(&mut self, question: &str) -> bool {
        let answer = self.ask(&format!("{question} (yes or no) "), Echo::Seen);
        answer.is_some_and(|answer| answer.trim().eq_ignore_ascii_case("yes"))
    }
}

impl Ask for Person {
    fn ask(&mut self, question: &str, echo: Echo) -> Option<String> {
        if !self.is_there {
            return None;
        }
        render::question(question);
        match echo {
            Echo::Hidden => rpassword::read_password().ok(),
            Echo::Seen => {
                let mut line = String::new();
                let count = std::io::stdin().read_line(&mut line).ok()?;
                // The end of the input is nobody's answer.
                (count > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
            }
        }
    }

    fn is_there(&self) -> bool {
        self.is_there
    }
}

//! An answer taken apart: what the model thought, what it says, and the tools that it calls.
//!
//! Models write all of it into one text, with markers between. Which ones a model uses follows from
//! its template ([`Markup`]); `calls` and `functions` read the forms of a call. Where a marker is a
//! token of the vocabulary, only that token counts, so the same letters in prose stay prose. Text
//! comes in pieces of any size, and the outcome is the same for every way of cutting it: a piece is
//! handed on as soon as no later text can change what it is, and a call as a whole. What looks like
//! a call and turns out to be none is content: nothing is lost.
//!
//! Pure: knows neither tokenizers nor clients. Start at [`OutputParser::push`].

mod calls;
mod functions;
mod markup;
mod tools;

use std::collections::VecDeque;

use calls::Outcome;
pub use markup::Markup;
use markup::{CallFormat, END_THINK, THINK};
pub use tools::{ToolCall, Tools};

/// More of an answer, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<ToolCall>,
}

/// Takes one answer apart while it grows.
#[derive(Debug)]
pub struct OutputParser {
    markup: Markup,
    tools: Tools,
    /// Whether the answer may hold more than one call.
    parallel: bool,
    state: State,
    /// Text that came and was not handed on.
    held: String,
    /// Where `held` begins in the whole text.
    base: usize,
    /// Where tokens that are markers begin in the whole text, ascending.
    marks: VecDeque<usize>,
    /// So much of `held` was looked at for the end of a call.
    tried: usize,
    is_ended: bool,
    is_done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far.
    Opening,
    Reasoning {
        is_fresh: bool,
    },
    /// `is_fresh`: nothing yet since the answer, or the text after reasoning or a call, began.
    Content {
        is_fresh: bool,
        skips_lines: bool,
    },
    /// `held` has white space of `lead` bytes, a marker of `marker` bytes, and what may be a call.
    Call {
        lead: usize,
        marker: usize,
    },
}

impl OutputParser {
    /// `opens_reasoning`: the prompt ended within the model's reasoning.
    pub fn new(markup: Markup, tools: Tools, parallel: bool, opens_reasoning: bool) -> Self {
        let state = if opens_reasoning && markup.reasoning {
            State::Reasoning { is_fresh: true }
        } else {
            State::Opening
        };
        Self {
            markup,
            tools,
            parallel,
            state,
            held: String::new(),
            base: 0,
            marks: VecDeque::new(),
            tried: 0,
            is_ended: false,
            is_done: false,
        }
    }

    /// Whether `marker`, a token's name, means anything in this answer.
    pub fn uses(&self, marker: &str) -> bool {
        self.markup.reasoning && matches!(marker, THINK | END_THINK)
            || self.format().is_some_and(|format| format.markers().contains(&marker))
    }

    /// The text from `position` of the whole on, which comes later, begins with a marker's token.
    pub fn mark(&mut self, position: usize) {
        self.marks.push_back(position);
    }

    /// More text of the answer; gives what can be handed on.
    pub fn push(&mut self, text: &str) -> Parts {
        self.held.push_str(text);
        self.drain()
    }

    /// The answer has ended: gives what was held back.
    pub fn finish(&mut self) -> Parts {
        self.is_ended = true;
        self.drain()
    }

    /// Whether the answer is complete before its end: its one call is there.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    fn drain(&mut self) -> Parts {
        let mut parts = Parts::default();
        while !self.is_done && self.step(&mut parts) {}
        if self.is_done {
            self.held.clear();
        }
        parts
    }

    /// One decision; false if it needs more text.
    fn step(&mut self, parts: &mut Parts) -> bool {
        match self.state {
            State::Opening => self.opening(),
            State::Reasoning { is_fresh } => self.reasoning(is_fresh, parts),
            State::Content { is_fresh, skips_lines } => self.content(is_fresh, skips_lines, parts),
            State::Call { lead, marker } => self.call(lead, marker, parts),
        }
    }

    fn opening(&mut self) -> bool {
        let lead = self.held.len() - self.held.trim_start().len();
        if self.markup.reasoning {
            match self.find(THINK) {
                Found::At(at) if at == lead => {
                    self.take(lead + THINK.len());
                    self.state = State::Reasoning { is_fresh: true };
                    return true;
                }
                Found::Perhaps(at) if at == lead && !self.is_ended => return false,
                _ if lead == self.held.len() && !self.is_ended => return false,
                _ => {}
            }
        }
        self.state = State::Content { is_fresh: true, skips_lines: false };
        true
    }

    /// Line breaks around it are the template's.
    fn reasoning(&mut self, is_fresh: bool, parts: &mut Parts) -> bool {
        if is_fresh {
            let lines = self.held.len() - self.held.trim_start_matches('\n').len();
            self.take(lines);
        }
        let found = self.find(END_THINK);
        let end = match found {
            Found::At(at) | Found::Perhaps(at) => at,
            Found::No => self.held.len(),
        };
        let is_closed = matches!(found, Found::At(_));
        let shown = if is_closed || !self.is_ended {
            self.held[..end].trim_end_matches('\n').len()
        } else {
            self.held.len()
        };
        parts.reasoning.push_str(&self.take(shown));
        if is_closed {
            self.take(end - shown + END_THINK.len());
            self.state = State::Content { is_fresh: true, skips_lines: true };
        } else if shown > 0 {
            self.state = State::Reasoning { is_fresh: false };
        }
        is_closed
    }

    fn content(&mut self, is_fresh: bool, skips_lines: bool, parts: &mut Parts) -> bool {
        if skips_lines {
            let lines = self.held.len() - self.held.trim_start_matches('\n').len();
            self.take(lines);
        }
        let Some(format) = self.format() else {
            let rest = self.take(self.held.len());
            self.shown(&rest, is_fresh, skips_lines, parts);
            return false;
        };
        let (found, marker) = self.find_call(format, is_fresh);
        let end = match found {
            Found::At(at) | Found::Perhaps(at) => at,
            Found::No => self.held.len(),
        };
        let is_call = matches!(found, Found::At(_));
        // White space before a call belongs to it, and so does what parts two bare ones.
        let shown = if marker == 0 {
            0
        } else if is_call || !self.is_ended {
            self.held[..end].trim_end().len()
        } else {
            self.held.len()
        };
        let text = self.take(shown);
        self.shown(&text, is_fresh, skips_lines, parts);
        if is_call {
            self.tried = 0;
            self.state = State::Call { lead: end - shown, marker };
        }
        is_call
    }

    fn shown(&mut self, text: &str, is_fresh: bool, skips_lines: bool, parts: &mut Parts) {
        parts.content.push_str(text);
        if !text.is_empty() && (is_fresh || skips_lines) {
            self.state = State::Content { is_fresh: false, skips_lines: false };
        }
    }

    fn call(&mut self, lead: usize, marker: usize, parts: &mut Parts) -> bool {
        let Some(format) = self.format() else { return false };
        let start = lead + marker;
        // A call ends with a bracket: without a new one a long one cannot have ended. What is no call
        // at all shows early.
        let is_early = self.held.len() < start + EARLY_BYTES;
        let has_new_end = self.held[self.tried.max(start)..].contains(format.ends());
        if !(is_early || has_new_end || self.is_ended) {
            return false;
        }
        match format.read(&self.held[start..], &self.tools, self.is_ended) {
            Outcome::Incomplete => {
                self.tried = self.held.len();
                false
            }
            Outcome::Calls { mut calls, length } if self.are_known(&calls, marker, format) => {
                self.take(start + length);
                if !self.parallel {
                    calls.truncate(1);
                    self.is_done = true;
                }
                parts.calls.append(&mut calls);
                self.state = State::Content { is_fresh: true, skips_lines: true };
                true
            }
            Outcome::Calls { .. } | Outcome::None => {
                // The marker was none, so the search goes on behind it. A bare call is one bracket.
                let text = self.take(if marker == 0 { lead + 1 } else { start });
                parts.content.push_str(&text);
                self.state = State::Content { is_fresh: false, skips_lines: false };
                true
            }
        }
    }

    /// A token that opens a call is a promise; plain text must name a tool that there is.
    fn are_known(&self, calls: &[ToolCall], marker: usize, format: CallFormat) -> bool {
        let is_promised = marker > 0 && self.markup.is_token(format.opening());
        is_promised || calls.iter().all(|call| self.tools.has(&call.name))
    }

    /// None where no tool is on offer.
    fn format(&self) -> Option<CallFormat> {
        self.markup.calls.filter(|_| !self.tools.is_empty())
    }

    /// Where a call may begin, and how long its marker is.
    fn find_call(&self, format: CallFormat, is_fresh: bool) -> (Found, usize) {
        let marker = format.opening();
        if format.may_be_bare() && is_fresh {
            let rest = self.held.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            if rest.starts_with('{') {
                return (Found::At(self.held.len() - rest.len()), 0);
            }
            if rest.is_empty() && !self.is_ended {
                return (Found::Perhaps(0), 0);
            }
        }
        (self.find(marker), marker.len())
    }

    fn find(&self, marker: &str) -> Found {
        if !self.markup.is_token(marker) {
            return match self.held.find(marker) {
                Some(at) => Found::At(at),
                None => beginning(&self.held, marker).map_or(Found::No, Found::Perhaps),
            };
        }
        for mark in &self.marks {
            let Some(at) = mark.checked_sub(self.base) else { continue };
            let Some(rest) = self.held.get(at..) else { continue };
            if rest.starts_with(marker) {
                return Found::At(at);
            }
            if marker.starts_with(rest) {
                return Found::Perhaps(at);
            }
        }
        Found::No
    }

    /// The first `length` bytes of what is held.
    fn take(&mut self, length: usize) -> String {
        let rest = self.held.split_off(length);
        self.base += length;
        self.tried = 0;
        while self.marks.front().is_some_and(|mark| *mark < self.base) {
            self.marks.pop_front();
        }
        std::mem::replace(&mut self.held, rest)
    }
}

/// Whether a prompt ends where the model is to go on thinking.
pub fn opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Where a marker stands in what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    At(usize),
    /// From here on it may turn out to be one.
    Perhaps(usize),
    No,
}

/// Where the longest end of `text` begins that is a beginning of `marker`.
fn beginning(text: &str, marker: &str) -> Option<usize> {
    let longest = marker.len().min(text.len() + 1) - 1;
    (1..=longest)
        .rev()
        .map(|length| text.len() - length)
        .find(|at| text.get(*at..).is_some_and(|end| marker.starts_with(end)))
}

/// So many bytes after its marker a call has begun, or it is none.
const EARLY_BYTES: usize = 64;

#[cfg(test)]
mod tests;

//! SSH, as far as pairing needs it: reach another machine as its user would, run one command there, and
//! speak with it over its standard input and output. Nothing of the data path depends on it.
//!
//! [`Destination`] is what a person typed, [`Settings`] what `~/.ssh/config` makes of it. [`connect`] is
//! our own client; [`SystemSsh`] runs the machine's `ssh` for what ours does not do. Both start commands
//! as a [`Running`]. A host is trusted by [`known_hosts`] alone, a person is asked through [`Ask`], and
//! this module prints nothing.

mod agent;
mod client;
mod config;
mod destination;
mod error;
mod files;
mod keys;
mod known_hosts;
mod login;
mod names;
mod network;
mod pattern;
mod running;
mod settings;
mod system;

pub use self::client::{Client, connect};
pub use self::destination::{Destination, DestinationError};
pub use self::error::{Place, SshError};
pub use self::known_hosts::NewHostKey;
pub use self::login::{Ask, Echo};
pub use self::running::{Ending, Line, Running};
pub use self::settings::{Settings, StrictHostKeys, User};
pub use self::system::SystemSsh;

/// Text of another machine, as far as it can be shown: on one line, printable, and not without end.
pub(crate) fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_whitespace() { ' ' } else { c };
    let is_shown = |c: &char| daisy_proto::hello::is_printable(*c);
    text.trim().chars().map(printable).filter(is_shown).take(SHOWN_CHARS_MAX).collect()
}

const SHOWN_CHARS_MAX: usize = 400;

#[cfg(test)]
mod tests;

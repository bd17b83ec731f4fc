//! What a machine is, concluded from what its system's commands and files say.
//!
//! Every function here takes text and gives facts; the `machine` adapter runs the commands and reads
//! the files. The texts are those of `tests/data/macos`, recorded on many Macs. What a text does not
//! say is none: a missing name, another language or a new key never makes a parser fail.
//!
//! [`memory`], [`chips`], [`power`] and [`linux`] make [`daisy_proto::Facts`]; [`ifconfig`], [`ports`] and
//! [`thunderbolt`] are put together by [`interfaces`], where the kind of a link is decided; [`route`]
//! and [`loops`] are for the doctor. Start at [`interfaces`].

pub mod chips;
pub mod ifconfig;
pub mod interfaces;
pub mod linux;
pub mod loops;
pub mod memory;
pub mod ports;
pub mod power;
pub mod route;
pub mod thunderbolt;

#[cfg(test)]
mod tests;

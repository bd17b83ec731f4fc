//! Pairing, over QUIC with ALPN [`crate::ALPN_PAIR`]: four messages of one size, so that nothing about
//! a try can be read from its length and nobody can make the other side hold more.
//!
//! ```text
//! dialler → listener   Open   which secret it means, its share of the key exchange, its name
//! listener → dialler   Reply  its share, its name, proof that it derived the same key
//! dialler → listener   Proof  the same, the other way
//! listener → dialler   Done   the dialler's key is stored
//! ```
//!
//! Layout: kind u8, then the fields at fixed places, zeros up to [`PAIR_BYTES`]. It knows no
//! cryptography: shares and proofs are bytes. It never changes, as the ALPN says.

use crate::NodeName;

/// Every pairing message takes this many bytes.
pub const PAIR_BYTES: usize = 256;
/// SPAKE2 over Ed25519: a side's byte and a point.
pub const SHARE_BYTES: usize = 33;
/// HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;

/// Which secret both sides should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secret {
    /// The code that the listener shows.
    Code,
    /// The invitation of this number.
    Invitation([u8; 8]),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairMessage {
    Open { secret: Secret, share: [u8; SHARE_BYTES], name: NodeName },
    Reply { share: [u8; SHARE_BYTES], name: NodeName, proof: [u8; PROOF_BYTES] },
    Proof([u8; PROOF_BYTES]),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other end does not speak the pairing protocol")]
pub struct PairError;

impl PairMessage {
    #[must_use]
    pub fn encode(&self) -> [u8; PAIR_BYTES] {
        let mut out = [0; PAIR_BYTES];
        match self {
            Self::Open { secret, share, name } => {
                out[0] = OPEN;
                if let Secret::Invitation(number) = secret {
                    out[1] = 1;
                    out[NUMBER].copy_from_slice(number);
                }
                out[SHARE].copy_from_slice(share);
                put_name(&mut out, name);
            }
            Self::Reply { share, name, proof } => {
                out[0] = REPLY;
                out[SHARE].copy_from_slice(share);
                out[PROOF].copy_from_slice(proof);
                put_name(&mut out, name);
            }
            Self::Proof(proof) => {
                out[0] = PROVE;
                out[PROOF].copy_from_slice(proof);
            }
            Self::Done => out[0] = DONE,
        }
        out
    }

    /// Accepts exactly what [`Self::encode`] writes.
    pub fn parse(bytes: &[u8; PAIR_BYTES]) -> Result<Self, PairError> {
        let share = bytes[SHARE].try_into().expect("the range has that length");
        let proof = bytes[PROOF].try_into().expect("the range has that length");
        let message = match bytes[0] {
            OPEN => {
                let number = bytes[NUMBER].try_into().expect("the range has that length");
                let secret = if bytes[1] == 0 { Secret::Code } else { Secret::Invitation(number) };
                Self::Open { secret, share, name: name_in(bytes)? }
            }
            REPLY => Self::Reply { share, name: name_in(bytes)?, proof },
            PROVE => Self::Proof(proof),
            DONE => Self::Done,
            _ => return Err(PairError),
        };
        // One form for one meaning: nothing can hide in bytes that nobody reads.
        if message.encode() == *bytes { Ok(message) } else { Err(PairError) }
    }
}

fn put_name(out: &mut [u8; PAIR_BYTES], name: &NodeName) {
    let name = name.as_str().as_bytes();
    out[NAME_LEN] = u8::try_from(name.len()).expect("a name has at most 63 bytes");
    out[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
}

fn name_in(bytes: &[u8; PAIR_BYTES]) -> Result<NodeName, PairError> {
    let length = usize::from(bytes[NAME_LEN]);
    let name = bytes.get(NAME_AT..NAME_AT + length).ok_or(PairError)?;
    let name = std::str::from_utf8(name).map_err(|_| PairError)?;
    NodeName::new(name).map_err(|_| PairError)
}

const OPEN: u8 = 1;
const REPLY: u8 = 2;
const PROVE: u8 = 3;
const DONE: u8 = 4;
const NUMBER: std::ops::Range<usize> = 2..10;
const SHARE: std::ops::Range<usize> = 10..10 + SHARE_BYTES;
const PROOF: std::ops::Range<usize> = 48..48 + PROOF_BYTES;
const NAME_LEN: usize = 80;
const NAME_AT: usize = 81;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).expect("a name")
    }

    fn all() -> Vec<PairMessage> {
        let share = [7; SHARE_BYTES];
        vec![
            PairMessage::Open { secret: Secret::Code, share, name: name("mini") },
            PairMessage::Open {
                secret: Secret::Invitation([9; 8]),
                share,
                name: name(&"ü".repeat(31)),
            },
            PairMessage::Reply { share, name: name("studio"), proof: [3; PROOF_BYTES] },
            PairMessage::Proof([4; PROOF_BYTES]),
            PairMessage::Done,
        ]
    }

    #[test]
    fn every_message_reads_back() {
        for message in all() {
            assert_eq!(PairMessage::parse(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn any_other_byte_is_another_message_or_none() {
        for message in all() {
            let good = message.encode();
            for at in 0..PAIR_BYTES {
                let mut bad = good;
                bad[at] ^= 0x81;
                assert_ne!(PairMessage::parse(&bad), Ok(message.clone()), "byte {at}");
            }
        }
        for first in 0..=u8::MAX {
            let _ = PairMessage::parse(&[first; PAIR_BYTES]);
        }
    }
}

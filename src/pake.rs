//! Proof that two nodes were told the same secret, without showing it: SPAKE2, then a confirmation each
//! way. A secret may be as short as a code that people type: whoever does not know it has one guess per
//! exchange, and nothing to guess at afterwards.
//!
//! What the proofs cover: both nodes' keys, the TLS connection (its exported keying material) and every
//! byte that was said. So a relay between two nodes, which has two connections and keys of its own,
//! cannot hand one side's proof to the other. It knows no socket. Start at [`Exchange::start`].

use aws_lc_rs::hmac;
use daisy_proto::NodeId;
use daisy_proto::pair::{PAIR_BYTES, PROOF_BYTES, SHARE_BYTES};
use spake2::{Ed25519Group, Identity, Password, Spake2};

/// Who takes part: the one that dials comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub dialler: NodeId,
    pub listener: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Dialler,
    Listener,
}

/// One try, half-way.
pub struct Exchange {
    state: Spake2<Ed25519Group>,
    ends: Ends,
    side: Side,
}

/// What both sides have said, and over which connection.
#[derive(Debug, Clone)]
pub struct Said {
    pub binding: [u8; 32],
    pub open: [u8; PAIR_BYTES],
    /// As it was before its proof was put in.
    pub reply: [u8; PAIR_BYTES],
}

/// A side's own proof, and what the other one's must be.
pub struct Proofs {
    key: hmac::Key,
    other: Vec<u8>,
    own: [u8; PROOF_BYTES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side's share is no share")]
pub struct BadShare;

impl Exchange {
    /// Begins a try; the share goes to the other side.
    pub fn start(side: Side, secret: &[u8], ends: Ends) -> (Self, [u8; SHARE_BYTES]) {
        let (password, dialler, listener) = (
            Password::new(secret),
            Identity::new(&ends.dialler.0),
            Identity::new(&ends.listener.0),
        );
        let (state, share) = match side {
            Side::Dialler => Spake2::start_a(&password, &dialler, &listener),
            Side::Listener => Spake2::start_b(&password, &dialler, &listener),
        };
        let share = share.try_into().expect("SPAKE2 over Ed25519 has shares of 33 bytes");
        (Self { state, ends, side }, share)
    }

    /// Takes the other side's share. That the secrets were the same shows only at
    /// [`Proofs::accepts`].
    pub fn finish(self, theirs: &[u8; SHARE_BYTES]) -> Result<Agreed, BadShare> {
        let key = self.state.finish(theirs).map_err(|_| BadShare)?;
        Ok(Agreed {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            ends: self.ends,
            side: self.side,
        })
    }
}

/// A key that both have, if their secrets were the same.
pub struct Agreed {
    key: hmac::Key,
    ends: Ends,
    side: Side,
}

impl Agreed {
    pub fn proofs(self, said: &Said) -> Proofs {
        let text = |side: Side| {
            let label: &[u8] = match side {
                Side::Dialler => b"daisy-pair/1 dialler",
                Side::Listener => b"daisy-pair/1 listener",
            };
            // Every part but the label has a fixed length, and no label begins another one.
            let Ends { dialler, listener } = &self.ends;
            [label, &said.binding, &dialler.0, &listener.0, &said.open, &said.reply].concat()
        };
        let other = match self.side {
            Side::Dialler => Side::Listener,
            Side::Listener => Side::Dialler,
        };
        let own = hmac::sign(&self.key, &text(self.side));
        let own = own.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes");
        Proofs { own, other: text(other), key: self.key }
    }
}

impl Proofs {
    pub fn own(&self) -> [u8; PROOF_BYTES] {
        self.own
    }

    /// Whether the other side knew the secret; takes the same time for every wrong proof.
    pub fn accepts(&self, theirs: &[u8; PROOF_BYTES]) -> bool {
        hmac::verify(&self.key, &self.other, theirs).is_ok()
    }
}

/// None of these shows what it holds: it may end up in a log.
macro_rules! opaque {
    ($($name:ident)+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}
opaque!(Exchange Agreed Proofs);

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends { dialler: NodeId([1; 32]), listener: NodeId([2; 32]) };

    fn said() -> Said {
        Said { binding: [3; 32], open: [4; PAIR_BYTES], reply: [5; PAIR_BYTES] }
    }

    /// What one side goes by.
    type End = (&'static [u8], Ends, Said);

    /// Whether each side accepts the other one's proof.
    fn outcome(dialler: &End, listener: &End) -> (bool, bool) {
        let (a, share_a) = Exchange::start(Side::Dialler, dialler.0, dialler.1);
        let (b, share_b) = Exchange::start(Side::Listener, listener.0, listener.1);
        let a = a.finish(&share_b).expect("a share").proofs(&dialler.2);
        let b = b.finish(&share_a).expect("a share").proofs(&listener.2);
        assert!(!a.accepts(&a.own()) && !b.accepts(&b.own()), "a mirror proves nothing");
        (a.accepts(&b.own()), b.accepts(&a.own()))
    }

    #[test]
    fn only_the_same_secret_between_the_same_nodes_over_the_same_connection_is_accepted() {
        let good = (&b"417209"[..], ENDS, said());
        assert_eq!(outcome(&good, &good), (true, true));
        let relay = NodeId([9; 32]);
        let others = [
            (&b"417208"[..], ENDS, said()),
            (&b""[..], ENDS, said()),
            (good.0, Ends { dialler: relay, ..ENDS }, said()),
            (good.0, Ends { listener: relay, ..ENDS }, said()),
            (good.0, Ends { dialler: ENDS.listener, listener: ENDS.dialler }, said()),
            (good.0, ENDS, Said { binding: [7; 32], ..said() }),
            (good.0, ENDS, Said { open: [7; PAIR_BYTES], ..said() }),
            (good.0, ENDS, Said { reply: [7; PAIR_BYTES], ..said() }),
        ];
        for (n, other) in others.into_iter().enumerate() {
            assert_eq!(outcome(&good, &other), (false, false), "case {n}");
            assert_eq!(outcome(&other, &good), (false, false), "case {n}");
        }
    }

    #[test]
    fn shares_that_are_none_are_refused() {
        let (own, share) = Exchange::start(Side::Dialler, b"1", ENDS);
        assert_eq!(own.finish(&share).err(), Some(BadShare), "its own side's");
        // About every second number is no point of the curve.
        let refused = (0..32_u8).filter(|y| {
            let mut junk = [0; SHARE_BYTES];
            (junk[0], junk[1]) = (b'B', *y);
            Exchange::start(Side::Dialler, b"1", ENDS).0.finish(&junk).is_err()
        });
        assert!(refused.count() > 4);
        assert!(
            !format!("{:?}", Exchange::start(Side::Dialler, b"1", ENDS).0).contains("password")
        );
    }
}

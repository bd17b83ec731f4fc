//! Damaged bytes give an error, never a panic, a hang or a large allocation.

mod common;

use bytes::Bytes;
use daisy_proto::control::Message;
use daisy_proto::frame::{self, Decoder, FrameError, Limits};
use daisy_proto::hello::Hello;
use daisy_proto::link::{EdgeMessage, Link, LinkConfig, Role};
use daisy_proto::local::{FromNode, FromRank, ToNode, ToRank};
use daisy_proto::{PipelineId, Rank};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edge_messages(message in common::edge_message(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn control_messages(message in common::control_message(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn messages_to_a_rank(message in common::to_rank(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn messages_from_a_rank(message in common::from_rank(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn messages_to_a_node(message in common::to_node(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn messages_from_a_node(message in common::from_node(), flip in any::<usize>()) {
        damage(&message, flip)?;
    }

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..300)) {
        _ = frame::decode::<EdgeMessage>(&bytes);
        _ = frame::decode::<Message>(&bytes);
        _ = frame::decode::<ToRank>(&bytes);
        _ = frame::decode::<FromRank>(&bytes);
        _ = frame::decode::<ToNode>(&bytes);
        _ = frame::decode::<FromNode>(&bytes);
        _ = Hello::parse(&bytes);
        _ = Hello::parse(&[b"daisyctl", bytes.as_slice()].concat());
    }

    /// Whatever comes, a decoder holds no more than its limits and the last chunk, and after an
    /// error it holds nothing and stays with the error.
    #[test]
    fn random_streams(chunks in vec(vec(prop_oneof![Just(0_u8), any::<u8>()], 0..80), 0..60)) {
        let limits = Limits { header_bytes: 100, payload_bytes: 200 };
        let mut decoder = Decoder::new(limits);
        let mut error = None;
        for chunk in chunks {
            decoder.push(chunk.into());
            loop {
                match decoder.next() {
                    Ok(Some(frame)) => {
                        prop_assert!(frame.header.len() <= limits.header_bytes);
                        prop_assert!(frame.payload.len() <= limits.payload_bytes);
                        prop_assert_eq!(&error, &None);
                    }
                    Ok(None) => break,
                    Err(new) => {
                        prop_assert_eq!(error.get_or_insert(new.clone()), &new);
                        prop_assert_eq!(decoder.buffered(), 0);
                        break;
                    }
                }
            }
            prop_assert!(decoder.buffered() < 100 + 200 + frame::PREFIX_BYTES);
        }
    }

    /// A neighbour that says well-formed nonsense ends the edge and nothing else.
    #[test]
    fn random_conversations(
        messages in vec((common::edge_message(), vec(any::<u8>(), 0..3)), 0..30),
        is_sender in any::<bool>(),
        greets in any::<bool>(),
    ) {
        let config = LinkConfig::new(PipelineId(5), Rank(0), Rank(1));
        let role = if is_sender { Role::Sender } else { Role::Receiver };
        let mut link = Link::new(config, role, Duration::ZERO);
        let hello = EdgeMessage::Hello {
            protocol_version: daisy_proto::PROTOCOL_VERSION,
            pipeline: PipelineId(5), from: Rank(0), to: Rank(1), credit: 4, steps: 0,
        };
        let first = greets.then_some((hello, vec![]));
        for (index, (message, payload)) in (0_u64..).zip(first.into_iter().chain(messages)) {
            let now = Duration::from_millis(100 * index);
            let payload = if matches!(message, EdgeMessage::Step(_)) { payload } else { vec![] };
            let mut bytes = frame::encode(&message, payload.len()).expect("fits").to_vec();
            bytes.extend_from_slice(&payload);
            link.handle_frame(now, common::one_frame(Limits::EDGE, bytes));
            link.handle_timeout(now);
            prop_assert!(std::iter::from_fn(|| link.poll_transmit()).count() <= 2);
        }
        prop_assert!(std::iter::from_fn(|| link.poll_event()).count() <= 16 + 2);
        prop_assert!(link.poll_timeout().is_some() != link.is_closed());
    }
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_their_bytes_come() {
    let prefix = |header: u32, payload: u32| {
        Bytes::from([header.to_le_bytes(), payload.to_le_bytes()].concat())
    };
    let cases = [
        (Limits::EDGE, prefix(64 * 1024, 256 << 20), Ok(None)),
        (
            Limits::EDGE,
            prefix(64 * 1024 + 1, 0),
            Err(FrameError::HeaderTooLong { got: 64 * 1024 + 1, limit: 64 * 1024 }),
        ),
        (
            Limits::EDGE,
            prefix(0, u32::MAX),
            Err(FrameError::PayloadTooLong { got: u32::MAX as usize, limit: 256 << 20 }),
        ),
        (Limits::CONTROL, prefix(1, 1), Err(FrameError::PayloadTooLong { got: 1, limit: 0 })),
        (Limits::LOCAL, prefix(8 << 20, 0), Ok(None)),
    ];
    for (limits, bytes, expected) in cases {
        let mut decoder = Decoder::new(limits);
        decoder.push(bytes);
        assert_eq!(decoder.next(), expected);
        assert_eq!(decoder.next(), expected, "the answer stays");
    }
}

#[test]
fn a_frame_that_the_other_end_would_refuse_is_not_made() {
    let long = "x".repeat(64 * 1024);
    assert!(frame::encode_within(Limits::LOCAL, &long, 0).is_ok());
    assert!(matches!(
        frame::encode_within(Limits::CONTROL, &long, 0),
        Err(FrameError::HeaderTooLong { .. })
    ));
    assert!(matches!(
        frame::encode(&(), 257 << 20),
        Err(FrameError::PayloadTooLong { limit: 268_435_456, .. })
    ));
}

#[test]
fn a_stream_that_ends_within_a_frame_is_known() {
    let bytes = frame::encode("header", 3).expect("fits");
    for cut in 1..bytes.len() {
        let mut decoder = Decoder::new(Limits::EDGE);
        decoder.push(bytes.slice(..cut));
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!(decoder.finish(), Err(FrameError::Truncated { buffered: cut }));
    }
}

/// Every truncation and added byte is an error; a flipped bit is an error or another message.
fn damage<T>(message: &T, flip: usize) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + std::fmt::Debug,
{
    let good = frame::encode(message, 0).expect("fits").slice(frame::PREFIX_BYTES..).to_vec();
    for cut in 0..good.len() {
        prop_assert!(frame::decode::<T>(&good[..cut]).is_err(), "cut at {}", cut);
    }
    let mut longer = good.clone();
    longer.push(0);
    prop_assert_eq!(
        frame::decode::<T>(&longer).err(),
        Some(FrameError::TrailingBytes { count: 1 })
    );
    let mut flipped = good;
    let bit = flip % (flipped.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    _ = frame::decode::<T>(&flipped);
    Ok(())
}

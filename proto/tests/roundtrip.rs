//! What one process writes, another one of the same version reads as the same value, however the
//! bytes are cut on the way.

mod common;

use std::fmt::Debug;

use bytes::Bytes;
use daisy_proto::CloseReason;
use daisy_proto::frame::{self, Decoder, Frame, Limits};
use daisy_proto::hello::Hello;
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edge_messages(message in common::edge_message()) {
        returns(Limits::EDGE, &message)?;
    }

    #[test]
    fn control_messages(message in common::control_message()) {
        returns(Limits::CONTROL, &message)?;
    }

    #[test]
    fn messages_to_a_rank(message in common::to_rank()) {
        returns(Limits::LOCAL, &message)?;
    }

    #[test]
    fn messages_from_a_rank(message in common::from_rank()) {
        returns(Limits::LOCAL, &message)?;
    }

    #[test]
    fn messages_to_a_node(message in common::to_node()) {
        returns(Limits::LOCAL, &message)?;
    }

    #[test]
    fn messages_from_a_node(message in common::from_node()) {
        returns(Limits::LOCAL, &message)?;
    }

    #[test]
    fn hellos(version in any::<u32>(), build in "[ -~äß🌼]{0,16}") {
        let hello = Hello::new(version, build).expect("printable and short");
        let bytes = hello.encode();
        prop_assert_eq!(Hello::parse(&bytes), Ok(Some((hello, bytes.len()))));
    }

    #[test]
    fn close_reasons(code in any::<u32>()) {
        prop_assert_eq!(CloseReason::from_code(code).code(), code);
        returns(Limits::EDGE, &CloseReason::from_code(code))?;
    }

    /// Headers and payloads on both sides of the size below which chunks are gathered.
    #[test]
    fn frames_however_they_are_cut(
        frames in vec((vec(any::<u8>(), 0..1500), vec(any::<u8>(), 0..4000)), 1..6),
        cuts in vec(prop_oneof![1_usize..16, 900..1200_usize, 1..5000_usize], 1..20),
    ) {
        let mut stream = Vec::new();
        let mut sent = Vec::new();
        for (header, payload) in frames {
            let head = frame::encode(&header, payload.len()).expect("within the limits");
            sent.push(Frame { header: head.slice(frame::PREFIX_BYTES..), payload: payload.clone().into() });
            stream.extend_from_slice(&head);
            stream.extend_from_slice(&payload);
        }
        let mut stream = Bytes::from(stream);
        let mut decoder = Decoder::new(Limits::EDGE);
        let mut got = Vec::new();
        for cut in cuts.iter().cycle() {
            decoder.push(stream.split_to(stream.len().min(*cut)));
            while let Some(frame) = decoder.next().expect("a good stream") {
                got.push(frame);
            }
            if stream.is_empty() {
                break;
            }
            prop_assert!(decoder.buffered() < 6000, "one frame and one chunk at most");
        }
        prop_assert_eq!(decoder.finish(), Ok(()));
        prop_assert_eq!(got, sent);
    }
}

#[test]
fn a_part_that_lies_in_one_chunk_is_not_copied() {
    let payload = vec![7; 100_000];
    let mut chunk = frame::encode("header", payload.len()).expect("fits").to_vec();
    let head_len = chunk.len();
    chunk.extend_from_slice(&payload);
    let chunk = Bytes::from(chunk);
    let frame = common::one_frame(Limits::EDGE, chunk.clone());
    assert_eq!(frame.payload.as_ptr(), chunk[head_len..].as_ptr());
    assert_eq!(frame.header.as_ptr(), chunk[frame::PREFIX_BYTES..].as_ptr());
}

fn returns<T>(limits: Limits, message: &T) -> Result<(), TestCaseError>
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let bytes = frame::encode_within(limits, message, 0).expect("within the limits");
    let frame = common::one_frame(limits, bytes);
    let back: T = frame::decode(&frame.header).expect("what was written can be read");
    prop_assert_eq!(&back, message);
    Ok(())
}

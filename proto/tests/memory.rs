//! A damaged length costs no memory. Alone in its binary, since it reads the whole process's peak.
#![cfg(target_os = "linux")]

use bytes::Bytes;
use daisy_proto::frame::{self, Decoder, Limits};
use daisy_proto::link::EdgeMessage;
use daisy_proto::local::ToRank;

#[test]
fn nothing_is_reserved_for_bytes_that_have_not_come() {
    let before = peak_kib();
    let mut decoders: Vec<_> = (0..64).map(|_| Decoder::new(Limits::EDGE)).collect();
    for decoder in &mut decoders {
        decoder.push(Bytes::from_static(&[0, 0, 1, 0, 0, 0, 0, 16]));
        assert_eq!(decoder.next(), Ok(None), "256 MiB are allowed, and awaited");
        for _ in 0..100 {
            decoder.push(Bytes::from_static(&[0; 1000]));
            assert_eq!(decoder.next(), Ok(None));
        }
    }
    // A step and an admission whose lists claim 2^32 entries.
    let mut bytes = vec![1, 0, 0];
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3]);
    assert!(frame::decode::<EdgeMessage>(&bytes).is_err());
    bytes[..3].copy_from_slice(&[2, 0, 0]);
    bytes.remove(2);
    assert!(frame::decode::<ToRank>(&bytes).is_err());

    // 64 × 100 kB came.
    let grown = peak_kib() - before;
    assert!(grown < 32 * 1024, "{grown} KiB");
}

/// Address space at its largest: it counts what was reserved and never touched too.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).expect("Linux has it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of kB")
}

//! A cable with a delay, where the kernel has none to offer: packets of one TUN device come out of the other.
//!
//! `wire DELAY_US`: standard input and standard output are the two devices, both open for reading and
//! writing. A thread per direction reads and stamps, another one sleeps until a packet is due and writes
//! it. Nothing is lost and nothing overtakes. Run it at real-time priority, or it adds the timer's slack.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

fn main() -> io::Result<()> {
    let delay = std::env::args().find_map(|arg| arg.parse().ok()).map(Duration::from_micros);
    // `cargo bench` gives no delay and no devices.
    let Some(delay) = delay else { return Ok(()) };
    let near = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let far = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let back = (far.try_clone()?, near.try_clone()?);
    std::thread::scope(|scope| {
        for (from, to) in [(near, far), back] {
            let (packets, due) = sync_channel(PACKETS_MAX);
            scope.spawn(move || take_in(from, delay, &packets));
            scope.spawn(move || let_out(to, &due));
        }
    });
    Ok(())
}

/// Ends with the device.
fn take_in(mut device: File, delay: Duration, packets: &SyncSender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    while let Ok(len) = device.read(&mut buffer) {
        // A full queue holds the reader, so the device drops as a full cable would.
        if packets.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
            return;
        }
    }
}

fn let_out(mut device: File, due: &Receiver<(Instant, Vec<u8>)>) {
    for (at, packet) in due {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // A device that is down refuses packets; a cable would lose them.
        let _ = device.write(&packet);
    }
}

const PACKETS_MAX: usize = 4096;
const PACKET_BYTES_MAX: usize = 65_536;

//! A cable with delay, rate and loss, where the kernel has none to offer: packets of one TUN device come
//! out of the other. The benches run it as a program, the tests of hosts on their own threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// What a packet meets on its way, the same in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Cable {
    pub delay: Duration,
    /// None: as fast as this machine copies.
    pub bit_per_s: Option<u64>,
    /// Packets of a million that do not arrive.
    pub lost_per_million: u32,
}

impl Cable {
    /// Joins two devices, both open for reading and writing, until they are gone. A thread per direction
    /// reads and stamps, another one sleeps until a packet is due and writes it. Nothing overtakes.
    pub fn join(self, near: File, far: File) -> io::Result<()> {
        let back = (far.try_clone()?, near.try_clone()?);
        for (from, to) in [(near, far), back] {
            let (packets, due) = sync_channel(PACKETS_MAX);
            std::thread::spawn(move || self.take_in(from, &packets));
            std::thread::spawn(move || let_out(to, &due));
        }
        Ok(())
    }

    /// Ends with the device.
    fn take_in(self, mut device: File, packets: &SyncSender<(Instant, Vec<u8>)>) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        let mut is_free_at = Instant::now();
        // Any sequence will do, as long as it is the same each time.
        let mut dice: u32 = 0x2545_F491;
        while let Ok(len) = device.read(&mut buffer) {
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            let now = Instant::now();
            let on_wire = self.bit_per_s.map_or(Duration::ZERO, |rate| {
                Duration::from_nanos(len as u64 * 8 * 1_000_000_000 / rate.max(1))
            });
            let begins = is_free_at.max(now);
            // A device in front of a slow cable holds this much, then it drops.
            if dice % 1_000_000 < self.lost_per_million || begins - now > QUEUE_MAX {
                continue;
            }
            is_free_at = begins + on_wire;
            // A full queue holds the reader, so the device drops as a full cable would.
            if packets.send((is_free_at + self.delay, buffer[..len].to_vec())).is_err() {
                return;
            }
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
const QUEUE_MAX: Duration = Duration::from_millis(100);

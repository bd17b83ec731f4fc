//! `wire DELAY_US`: a cable between the two TUN devices that are its standard input and output. Run it at
//! real-time priority, or it adds the timer's slack.

mod cable;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use cable::Cable;

fn main() -> io::Result<()> {
    let delay = std::env::args().find_map(|arg| arg.parse().ok()).map(Duration::from_micros);
    // `cargo bench` gives no delay and no devices.
    let Some(delay) = delay else { return Ok(()) };
    let near = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let far = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Cable { delay, bit_per_s: None, lost_per_million: 0 }.join(near, far)?;
    loop {
        // Its starter ends it.
        std::thread::park();
    }
}

//! A TCP connection to an SSH server, or why there is none.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::error::SshError;

/// Tries every address of `host` in turn.
pub(super) async fn reach(host: &str, port: u16) -> Result<TcpStream, SshError> {
    let unknown = |why: String| SshError::UnknownHost { host: host.to_owned(), why };
    let addrs: Vec<SocketAddr> = match timeout(LOOK_UP_MAX, lookup_host((host, port))).await {
        Ok(Ok(addrs)) => addrs.take(ADDRS_MAX).collect(),
        Ok(Err(error)) => return Err(unknown(error.to_string())),
        Err(_) => return Err(unknown(format!("no answer within {} s", LOOK_UP_MAX.as_secs()))),
    };
    let mut faults = Vec::new();
    for addr in addrs {
        match timeout(CONNECT_MAX, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => {
                // Lines go both ways, and each waits for the other.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => faults.push((addr, error)),
            Err(_) => faults.push((addr, ErrorKind::TimedOut.into())),
        }
    }
    Err(fault(host, port, &faults))
}

/// Of several faults the one that says most: a machine that refuses is there.
fn fault(host: &str, port: u16, faults: &[(SocketAddr, io::Error)]) -> SshError {
    let host = host.to_owned();
    if faults.is_empty() {
        return SshError::UnknownHost { host, why: "it has none".to_owned() };
    }
    if faults.iter().any(|(_, error)| error.kind() == ErrorKind::ConnectionRefused) {
        return SshError::Refused { host, port };
    }
    let told = |(addr, error): &(SocketAddr, io::Error)| match error.kind() {
        ErrorKind::TimedOut => {
            format!("{}: no answer within {} s", addr.ip(), CONNECT_MAX.as_secs())
        }
        _ => format!("{}: {error}", addr.ip()),
    };
    let why = faults.iter().map(told).collect::<Vec<_>>().join("; ");
    SshError::Unreachable { host, port, why }
}

const LOOK_UP_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(8);
const ADDRS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_that_says_most_is_told() {
        let at = |ip: &str| SocketAddr::new(ip.parse().expect("an address"), 22);
        let silent = || (at("10.0.0.1"), io::Error::from(ErrorKind::TimedOut));
        let refused = (at("10.0.0.2"), io::Error::from(ErrorKind::ConnectionRefused));
        let text = fault("mini", 22, &[silent(), refused]).to_string();
        assert_eq!(text, "mini refuses connections to port 22");
        let text = fault("mini", 22, &[silent()]).to_string();
        assert!(text.contains("10.0.0.1: no answer within 8 s"), "{text}");
        assert!(matches!(fault("mini", 22, &[]), SshError::UnknownHost { .. }));
    }
}

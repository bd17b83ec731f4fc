//! Where the endpoint listens. Only loopback addresses for now: an endpoint that other machines can
//! reach needs API keys, which do not exist yet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

/// Why the endpoint cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "--host {host} is not a loopback address: an endpoint that other machines can reach needs \
         an API key, which this version does not have; use --host 127.0.0.1"
    )]
    NotLoopback { host: String },
    #[error("{addr} is in use by another process; choose another port with --port")]
    PortTaken { addr: SocketAddr },
    #[error("no permission to listen on {addr}; choose a port above 1023 with --port")]
    NoPermission { addr: SocketAddr },
    #[error("this machine has no address {}; use --host 127.0.0.1", addr.ip())]
    NoSuchAddress { addr: SocketAddr },
    #[error("cannot listen on {addr}: {source}")]
    Other { addr: SocketAddr, source: io::Error },
}

/// Listens on a loopback address; port 0 takes any free one.
pub async fn bind(host: &str, port: u16) -> Result<TcpListener, BindError> {
    let addr = SocketAddr::new(loopback(host)?, port);
    TcpListener::bind(addr).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::PortTaken { addr },
        io::ErrorKind::PermissionDenied => BindError::NoPermission { addr },
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress { addr },
        _ => BindError::Other { addr, source },
    })
}

/// No resolver is asked: what a name means there could change under us, and only one name is
/// loopback by definition.
fn loopback(host: &str) -> Result<IpAddr, BindError> {
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal
        .parse()
        .ok()
        .filter(IpAddr::is_loopback)
        .ok_or_else(|| BindError::NotLoopback { host: host.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts() {
        for host in ["127.0.0.1", "127.8.9.10", "localhost", "LocalHost", "::1", "[::1]"] {
            assert!(loopback(host).is_ok(), "{host}");
        }
        let others =
            ["0.0.0.0", "::", "10.0.0.5", "example.com", "", "127.0.0.1:80", "localhost.", "[]"];
        for host in others {
            let error = loopback(host).unwrap_err().to_string();
            assert!(error.contains(&format!("--host {host} ")), "{error}");
            assert!(error.contains("API key"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_names_address_and_remedy() {
        let first = bind("127.0.0.1", 0).await.unwrap();
        let addr = first.local_addr().unwrap();
        let error = bind("localhost", addr.port()).await.unwrap_err().to_string();
        assert!(error.contains(&addr.to_string()), "{error}");
        assert!(error.contains("--port"), "{error}");
    }
}

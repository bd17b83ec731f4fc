//! How QUIC says that a connection ended, and how Daisy says it: [`CloseReason`] in the close frame.
//!
//! Knows no messages and no steps.

use daisy_proto::CloseReason;
use quinn::{Connection, ConnectionError, TransportErrorCode, VarInt};

/// Ends a connection at once; the peer gets the reason.
pub(crate) fn close(connection: &Connection, reason: CloseReason) {
    connection.close(VarInt::from_u32(reason.code()), reason.sentence().as_bytes());
}

pub(crate) fn reason_of(code: VarInt) -> CloseReason {
    u32::try_from(code.into_inner()).map_or(CloseReason::Unknown(u32::MAX), CloseReason::from_code)
}

/// The other side looked at our key and refused it (TLS alert `access_denied`).
pub(crate) fn is_access_denied(error: &ConnectionError) -> bool {
    let denied = TransportErrorCode::crypto(ALERT_ACCESS_DENIED);
    matches!(error, ConnectionError::ConnectionClosed(closed) if closed.error_code == denied)
}

/// The other side has no place for another handshake, or is about to close.
pub(crate) fn is_turned_away(error: &ConnectionError) -> bool {
    use TransportErrorCode as Code;
    let codes = [Code::CONNECTION_REFUSED, Code::APPLICATION_ERROR];
    matches!(error, ConnectionError::ConnectionClosed(closed) if codes.contains(&closed.error_code))
}

/// Every error of a stream that is used as documented comes from its connection.
pub(crate) trait IntoLost {
    fn into_lost(self) -> ConnectionError;
}

impl IntoLost for quinn::WriteError {
    fn into_lost(self) -> ConnectionError {
        match self {
            Self::ConnectionLost(error) => error,
            _ => ConnectionError::LocallyClosed,
        }
    }
}

impl IntoLost for quinn::ReadError {
    fn into_lost(self) -> ConnectionError {
        match self {
            Self::ConnectionLost(error) => error,
            _ => ConnectionError::LocallyClosed,
        }
    }
}

const ALERT_ACCESS_DENIED: u8 = 49;

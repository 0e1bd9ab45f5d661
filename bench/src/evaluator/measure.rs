//! One rate: warm up, then count requests and processor time.

use std::time::Duration;

use super::{
    client::{Client, Measured},
    process::Process,
};
use crate::report::{Unit, us};

/// A rate with its latencies and its price.
pub(crate) struct Rate {
    measured: Measured,
    /// Processor time of the server per request, in microseconds.
    pub(crate) cpu_us: f64,
}

/// A value of a row, with its name and its unit.
pub(crate) type Cell = (&'static str, Unit, f64);

/// Processor time of the server per request.
pub(crate) const CPU: &str = "CPU per request";

/// First requests pay for lazy set-up; half a second is thousands of them.
pub(crate) const WARM_UP: Duration = Duration::from_millis(500);

// === impl Rate ===

impl Rate {
    /// Measures `client` against its server for `time`.
    pub(crate) async fn of(
        client: &mut Client,
        server: &Process,
        time: Duration,
    ) -> anyhow::Result<Self> {
        client.run(WARM_UP.min(time)).await?;
        let before = server.cpu()?;
        let measured = client.run(time).await?;
        let cpu = server.cpu()?.saturating_sub(before);
        let requests = measured.latencies.len().max(1) as f64;
        Ok(Self {
            cpu_us: cpu.as_secs_f64() * 1e6 / requests,
            measured,
        })
    }

    /// Requests a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.measured.rate()
    }

    /// 99 of 100 requests took at most this.
    pub(crate) fn p99(&self) -> Duration {
        self.measured.percentile(0.99)
    }

    /// As cells of a row.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let latency = |share: f64| us(self.measured.percentile(share));
        vec![
            ("req/s", Unit::Number, self.per_second().round()),
            ("p50", Unit::Microseconds, latency(0.5)),
            ("p99", Unit::Microseconds, latency(0.99)),
            ("max", Unit::Microseconds, latency(1.0)),
            (CPU, Unit::Microseconds, self.cpu_us),
        ]
    }
}

/// As megabytes.
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

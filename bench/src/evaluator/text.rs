//! Policies written as text: from a text to an artefact, one evaluation, requests beside `opa run --server` in the same
//! run, and memory of many. The review and the policy `require-owner` are the same everywhere.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use assent_text::{Language, Text};
use assent_wasm::{Abi, Engine, EngineConfig, Limits};
use clap::Args as ClapArgs;

use super::{
    certificate::Certificate,
    client::{Client, allowed},
    guests::Guest,
    measure::{CPU, Rate, megabytes},
    plane::Plane,
    process::Process,
    raw::Raw,
};
use crate::report::{Report, Runs, Unit, ms};

/// What to measure.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    /// Folder with the example policies
    #[arg(long, default_value = "policies")]
    policies: PathBuf,
    /// The program of OPA (`scripts/tools opa`)
    #[arg(long, env = "ASSENT_OPA", value_name = "FILE")]
    opa: PathBuf,
    /// Connections that are kept open and busy
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Numbers of texts loaded at once
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    loaded: Vec<usize>,
    /// How often everything is measured; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds for which each rate is measured
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Measure briefly, to see that everything works: these numbers mean nothing
    #[arg(long)]
    quick: bool,
    /// Where the JSON goes
    #[arg(long, default_value = "bench-text.json")]
    json: PathBuf,
}

/// What every measurement needs.
struct Bench {
    args: Args,
    time: Duration,
    engine: Engine,
    interpreters: [(Language, Vec<u8>); 2],
    plane: Plane,
    certificate: Certificate,
    runs: Runs,
}

/// The settings of `require-owner`; a text reads them as `data`, and OPA from a file.
const SETTINGS: &str = r#"{"annotation":"example.com/owner","pattern":"^team-[a-z0-9-]+$"}"#;

const REGO: &str = "rego text";
const CEL: &str = "cel text";
const MODULE: &str = "opa build";
const SERVER: &str = "opa run --server";

/// Buffers of the start are given back within it.
const SETTLE: Duration = Duration::from_secs(1);

/// Runs everything.
#[tokio::main]
pub(crate) async fn run(mut args: Args) -> anyhow::Result<()> {
    if args.quick {
        (args.runs, args.seconds, args.loaded) = (1, 0.3, vec![1, 3]);
    }
    let parameters = format!(
        "review of {} bytes, HTTPS, HTTP/1.1, {} connections, texts loaded {:?}, {} s per rate, {} runs",
        super::REVIEW.len(),
        args.connections,
        args.loaded,
        args.seconds,
        args.runs
    );
    let mut table = Report::new("text", parameters);
    let engine = Engine::new(EngineConfig::default())?;
    let compile = |language: Language| {
        let compiled = engine.precompile_interpreter(language.interpreter())?;
        Ok::<_, anyhow::Error>((language, compiled))
    };
    let mut bench = Bench {
        time: Duration::try_from_secs_f64(args.seconds)?,
        interpreters: [compile(Language::Rego)?, compile(Language::Cel)?],
        plane: Plane::start(&engine).await?,
        certificate: Certificate::new()?,
        runs: Runs::default(),
        engine,
        args,
    };
    for _ in 0..bench.args.runs {
        bench.runs.begin();
        bench.measure().await?;
    }
    compare(&bench.runs, &mut table);
    table.runs(std::mem::take(&mut bench.runs));
    table.finish(&bench.args.json)
}

impl Bench {
    async fn measure(&mut self) -> anyhow::Result<()> {
        let guests = vec![
            self.text(REGO, "require-owner/src/policy.rego")?,
            self.text(CEL, "text/require-owner/policy.cel.yaml")?,
            self.module()?,
        ];
        for guest in &guests {
            self.raw(guest)?;
        }
        self.evaluator(&guests).await?;
        self.server().await?;
        for count in self.args.loaded.clone() {
            self.memory(&guests[0], count).await?;
        }
        Ok(())
    }

    fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.args.policies.join(path);
        let read = fs::read(&path);
        read.with_context(|| format!("failed to read {}", path.display()))
    }

    /// Builds and compiles a text as vetting does, with the interpreter compiled already.
    fn text(&mut self, label: &'static str, path: &str) -> anyhow::Result<Guest> {
        let content = String::from_utf8(self.read(path)?)?;
        let text = Text::from_file(path, content).context("it must be a text")?;
        let interpreter = self.interpreters.iter();
        let interpreter = interpreter
            .filter(|(language, _)| *language == text.language)
            .map(|(_, compiled)| &compiled[..])
            .next();
        let start = Instant::now();
        let wasm = text.build(&self.engine, interpreter, Limits::default())?;
        let built = start.elapsed();
        let artefact = self.engine.precompile(&wasm)?;
        let compiled = start.elapsed();
        let cells = [
            ("text to module", Unit::Milliseconds, ms(built)),
            (TO_ARTEFACT, Unit::Milliseconds, ms(compiled)),
            ("module", Unit::Megabytes, megabytes(wasm.len() as u64)),
            (
                "artefact",
                Unit::Megabytes,
                megabytes(artefact.len() as u64),
            ),
        ];
        self.runs.row(format!("{label}: build"), cells);
        Ok(Guest::new(Abi::Wapc, label, SETTINGS, wasm, artefact))
    }

    fn module(&self) -> anyhow::Result<Guest> {
        let wasm = self.read("require-owner/policy.wasm")?;
        let artefact = self.engine.precompile(&wasm)?;
        Ok(Guest::new(Abi::Opa, MODULE, SETTINGS, wasm, artefact))
    }

    fn raw(&mut self, guest: &Guest) -> anyhow::Result<()> {
        let (engine, time) = (&self.engine, self.time);
        let calls = tokio::task::block_in_place(|| Raw::prepare(engine, guest)?.call(1, time))?;
        let cells = [
            ("calls/s", Unit::Number, calls.per_second.round()),
            (CPU, Unit::Microseconds, calls.cpu_us),
        ];
        self.runs.row(raw_row(guest.label), cells);
        Ok(())
    }

    async fn evaluator(&mut self, guests: &[Guest]) -> anyhow::Result<()> {
        let set = guests.iter().map(|guest| {
            self.plane.module_store.put(guest);
            guest.revision(&guest.label.replace(' ', "-"), 1)
        });
        let set = set.collect();
        self.plane.module_store.offer_artefacts(true);
        self.plane.publish(set);
        let evaluator = Process::evaluator(&self.plane, &self.certificate, "text")?;
        for (guest, path) in guests.iter().zip(self.plane.paths()) {
            self.rate(guest.label, &evaluator, path, allowed).await?;
        }
        Ok(())
    }

    /// OPA with the same policy, settings and review.
    async fn server(&mut self) -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("data.json"), SETTINGS)?;
        let policy = self.read("require-owner/src/policy.rego")?;
        fs::write(dir.path().join("policy.rego"), policy)?;
        let server = self.opa(dir.path())?;
        let path = "/v0/data/require_owner/main".to_owned();
        self.rate(SERVER, &server, path, allowed_by_opa).await
    }

    fn opa(&self, dir: &Path) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.args.opa);
        command
            .args([
                "run",
                "--server",
                "--disable-telemetry",
                "--log-level",
                "error",
            ])
            .arg("--tls-cert-file")
            .arg(self.certificate.chain())
            .arg("--tls-private-key-file")
            .arg(self.certificate.key())
            .args(["policy.rego", "data.json"])
            .current_dir(dir);
        Process::listening(command).context("failed to start opa")
    }

    async fn rate(
        &mut self,
        label: &str,
        server: &Process,
        path: String,
        good: fn(&[u8]) -> bool,
    ) -> anyhow::Result<()> {
        let tls = self.certificate.client();
        let connections = self.args.connections;
        let client = Client::open(server.address, tls, connections, vec![path], good);
        let rate = Rate::of(&mut client.await?, server, self.time).await?;
        let mut cells = rate.cells();
        cells.push((PER_CPU, Unit::Number, (1e6 / rate.cpu_us).round()));
        self.runs.row(requests_row(label), cells);
        Ok(())
    }

    /// Each has a module of its own; their code is the same, but nothing knows that.
    async fn memory(&mut self, guest: &Guest, count: usize) -> anyhow::Result<()> {
        let one = |n: usize| {
            let guest = guest.variant(n);
            self.plane.module_store.put(&guest);
            guest.revision(&format!("text-{n}"), 1)
        };
        let set: Vec<_> = (0..count).map(one).collect();
        ensure!(set.len() == count, "every text must be loaded");
        self.plane.publish(set);
        let id = format!("memory-{count}");
        let process = Process::evaluator(&self.plane, &self.certificate, &id)?;
        tokio::time::sleep(SETTLE).await;
        let (idle, peak) = process.memory()?;
        let cells = [
            ("ready after", Unit::Milliseconds, ms(process.to_ready)),
            ("memory idle", Unit::Megabytes, megabytes(idle)),
            ("peak", Unit::Megabytes, megabytes(peak)),
        ];
        self.runs
            .row(format!("{count} texts from artefacts"), cells);
        Ok(())
    }
}

const TO_ARTEFACT: &str = "text to artefact";

/// Requests per second of processor time.
const PER_CPU: &str = "req/CPU s";

fn raw_row(label: &str) -> String {
    format!("{label}: raw call, 1 thread")
}

fn requests_row(label: &str) -> String {
    format!("{label}: requests")
}

fn allowed_by_opa(body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    body.contains(r#""allowed":true"#)
}

/// What was measured, against what it should be.
fn compare(runs: &Runs, table: &mut Report) {
    let median = |row: &str, value: &str| runs.median(row, value).unwrap_or(f64::NAN);
    let mut line = |words: &str, unit: Unit, value: f64, bound: f64, at_most: bool| {
        let holds = if at_most {
            value <= bound
        } else {
            value >= bound
        };
        let cells = vec![
            ("median", unit.show(value)),
            (
                if at_most { "at most" } else { "at least" },
                unit.show(bound),
            ),
            (
                "it",
                if holds { "holds" } else { "DOES NOT HOLD" }.to_owned(),
            ),
        ];
        table.row(words, cells);
    };
    for label in [REGO, CEL] {
        let built = median(&format!("{label}: build"), TO_ARTEFACT);
        line(
            &format!("{label}: build"),
            Unit::Milliseconds,
            built,
            1_500.0,
            true,
        );
    }
    let raw = |label: &str| median(&raw_row(label), CPU);
    line(
        "rego text of opa build, raw",
        Unit::Times,
        raw(REGO) / raw(MODULE),
        2.0,
        true,
    );
    line("cel text, raw", Unit::Microseconds, raw(CEL), 150.0, true);
    let cpu = median(&requests_row(REGO), CPU);
    line(
        "rego text, end to end",
        Unit::Microseconds,
        cpu,
        200.0,
        true,
    );
    let per_cpu = |label: &str| median(&requests_row(label), PER_CPU);
    let times = per_cpu(REGO) / per_cpu(SERVER);
    line(
        "rego text of opa run --server",
        Unit::Times,
        times,
        3.0,
        false,
    );
}

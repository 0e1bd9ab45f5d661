//! The files of the store: one for each policy, replaced as a whole.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use assent_core::{Digest, PolicyKey};
use uuid::Uuid;

use super::{Damaged, Error, PolicyRecord};

/// The directory of records, below the state directory.
const RECORDS: &str = "objects";

/// The suffix of records; other files are not read.
const ENDING: &str = ".json";

/// Locks the state directory for this process.
pub(super) fn lock(directory: &Path) -> Result<fs::File, Error> {
    let records = directory.join(RECORDS);
    fs::create_dir_all(&records).map_err(|e| failed("create", &records, e))?;
    let path = directory.join("lock");
    let file = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| failed("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
        Err(fs::TryLockError::Error(error)) => Err(failed("lock", &path, error)),
    }
}

/// Reads all records. Those that cannot be read are set aside.
pub(super) fn load(directory: &Path) -> Result<(Vec<PolicyRecord>, Vec<Damaged>), Error> {
    let directory = directory.join(RECORDS);
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    let entries = fs::read_dir(&directory).map_err(|e| failed("list", &directory, e))?;
    for entry in entries {
        let path = entry.map_err(|e| failed("list", &directory, e))?.path();
        if !path.to_string_lossy().ends_with(ENDING) {
            continue;
        }
        let bytes = fs::read(&path).map_err(|e| failed("read", &path, e))?;
        match decode(&bytes) {
            Ok(record) => records.push(record),
            Err(error) => damaged.push(set_aside(path, error)?),
        }
    }
    Ok((records, damaged))
}

/// Writes a record: to a new file, onto the disk, then over the old one.
pub(super) fn write(directory: &Path, record: &PolicyRecord) -> Result<(), Error> {
    let directory = directory.join(RECORDS);
    let path = directory.join(format!("{}{ENDING}", record.uid));
    let fresh = directory.join(format!("{}.new", record.uid));
    let written = fs::File::create(&fresh).and_then(|mut file| {
        file.write_all(&encode(record))?;
        file.sync_all()
    });
    written.map_err(|e| failed("write", &fresh, e))?;
    fs::rename(&fresh, &path).map_err(|e| failed("replace", &path, e))?;
    sync(&directory)
}

/// Removes a record.
pub(super) fn remove(directory: &Path, uid: Uuid) -> Result<(), Error> {
    let directory = directory.join(RECORDS);
    let path = directory.join(format!("{uid}{ENDING}"));
    match fs::remove_file(&path) {
        Ok(()) => sync(&directory),
        // It was created and forgotten between two commits.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", &path, error)),
    }
}

/// The digest goes first, so that a file that was cut or edited is noticed.
fn encode(record: &PolicyRecord) -> Vec<u8> {
    let json = serde_json::to_string_pretty(record).expect("a record must be JSON");
    format!("{}\n{json}\n", Digest::of(json.as_bytes())).into_bytes()
}

fn decode(bytes: &[u8]) -> Result<PolicyRecord, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let (digest, json) = text.split_once('\n').ok_or("cut off")?;
    let json = json.strip_suffix('\n').ok_or("cut off")?;
    if Digest::of(json.as_bytes()).to_string() != digest {
        return Err("its content does not match its digest".to_owned());
    }
    let record: PolicyRecord = serde_json::from_str(json).map_err(|error| error.to_string())?;
    if PolicyKey::parse(&record.policy).is_none() {
        return Err(format!("{:?} is not the name of a policy", record.policy));
    }
    Ok(record)
}

fn set_aside(file: PathBuf, error: String) -> Result<Damaged, Error> {
    let name = |i: u32| file.with_extension(format!("damaged-{i}"));
    let kept_as = (1..).map(name).find(|path| !path.exists());
    let kept_as = kept_as.expect("numbers must not end");
    fs::rename(&file, &kept_as).map_err(|e| failed("set aside", &file, e))?;
    Ok(Damaged {
        file,
        kept_as,
        error,
    })
}

/// A rename is on disk only when its directory is.
fn sync(directory: &Path) -> Result<(), Error> {
    let synced = fs::File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|e| failed("sync", directory, e))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

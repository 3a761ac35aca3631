# GRAM's job manager type "samgrid". It decides nothing: it passes a job's description to samgrid-gram, and the answer
# back, both unchanged. It answers polls from the file that the monitor writes, without starting an interpreter.

## no critic (Modules::RequireExplicitPackage)
# Before the package line: the base class imports POSIX into the package that loads it first, whose getenv would then
# hide the method that the base class calls.
use Globus::GRAM::JobManager;
## use critic

package Globus::GRAM::JobManager::samgrid;    ## no critic (RequireFilenameMatchesPackage)

use strict;
use warnings;
our @ISA = ('Globus::GRAM::JobManager');

# Only modules that the base class loads anyway, because GRAM may start an interpreter for each poll.
use Fcntl qw(F_SETFL O_APPEND O_CREAT O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_RDONLY O_WRONLY);
use Globus::Core::Config;
use Globus::GRAM::Error;
use Time::HiRes;

# Constants of Linux; the module Socket would take longer to load than all of this.
my ( $PF_UNIX, $SOCK_STREAM ) = ( 1, 1 );

# The answers to GRAM if the program gives none; there is none for a poll, so the state stays.
my %ERROR_WITHOUT_ANSWER = (
    submit => Globus::GRAM::Error::JOB_EXECUTION_FAILED()->value(),
    cancel => Globus::GRAM::Error::JOB_CANCEL_FAILED()->value(),
    signal => Globus::GRAM::Error::SIGNALING_JOB()->value(),
);
my %IS_KEY   = map { $_ => 1 } qw(JOB_ID JOB_STATE GT3_FAILURE_MESSAGE ERROR);
my %IS_FINAL = map { $_ => 1 } Globus::GRAM::JobState::FAILED(), Globus::GRAM::JobState::DONE();

# True while files of a grid job that failed are staged out.
our $is_failure = 0;

# The program, started when it is first needed; it stays loaded as long as this interpreter runs.
my %program;

sub submit {
    my ($self) = @_;
    # Needed for the log; the program, which checks the folder, might not even start.
    eval { File::Path::make_path( _find_state_folder(), { mode => oct 700 } ) };
    return $self->_call('submit');
}

sub poll {
    my ($self)  = @_;
    my $started = Time::HiRes::time();
    my $state   = _find_state_folder();
    my $id      = $self->{JobDescription}->jobid();
    my ($job)   = defined $id ? $id =~ /\A[0-9]+[.]([a-z][a-z0-9]{7})\z/ : ();
    my $answer  = defined $job ? _read_file("$state/gram/$job") : undef;
    if ( $answer && ( _is_final($answer) || _wake_monitor($state) ) ) {
        $self->_write_log( $state, 'poll', $answer, $started );
        return $self->_respond($answer);
    }
    return $self->_call('poll');
}

sub cancel {
    my ($self) = @_;
    return $self->_call('cancel');
}

sub signal {
    my ($self) = @_;
    return $self->_call('signal');
}

# GRAM stages files out only after DONE, so the event of a failed grid job says DONE, and the failure is reported here.
# GRAM fails a job only if it does not hear that all files were staged.
sub stage_out {
    my ($self) = @_;
    my $failure = $self->_ask_program('stage_out') || $self->_ask_program('stage_out') || [];
    local $is_failure = scalar @{$failure};
    my $staged = $self->SUPER::stage_out();
    return ref $staged eq 'HASH' && $is_failure ? $self->_respond($failure) : $staged;
}

sub respond {
    my ( $self, $answer ) = @_;
    return if $is_failure && grep { /\ASTAGED_(?:OUT|STREAM)\z/ } keys %{$answer};
    return $self->SUPER::respond($answer);
}

# If an answer is lost, the call is repeated once: by GRAM's uniqid it is the same grid job.
sub _call {
    my ( $self, $command ) = @_;
    my $started = Time::HiRes::time();
    my $answer  = $self->_ask_program($command) || $self->_ask_program($command);
    if ( $answer && $command eq 'submit' ) {
        $self->_acknowledge();
    }
    if ( !$answer ) {
        $answer = $self->_give_up($command);
        $self->_write_log( _find_state_folder(), $command, $answer, $started );
    }
    return $self->_respond($answer);
}

# An answer is a list of [KEY, value]. With an error, the order matters: the manager stops reading at the error.
sub _respond {
    my ( $self, $answer ) = @_;
    my %values = map { $_->[0] => $_->[1] } @{$answer};
    return \%values if !exists $values{ERROR};
    for my $pair ( @{$answer} ) {
        $self->respond( { $pair->[0] => $pair->[1] } );
    }
    return {};
}

sub _give_up {
    my ( $self, $command ) = @_;
    return [] if !exists $ERROR_WITHOUT_ANSWER{$command};
    my $error = [ ERROR => $ERROR_WITHOUT_ANSWER{$command} ];
    return [$error] if $command ne 'submit';
    $self->_withdraw();
    my $log = _find_state_folder() . '/gram.log';
    return [ [ GT3_FAILURE_MESSAGE => "the job manager gave no answer: see $log on its host" ], $error ];
}

# The request may have been accepted before its answer was lost: then the monitor will cancel the grid job.
sub _withdraw {
    my ($self) = @_;
    my $mark   = $self->_find_mark() or return;
    my $state  = _find_state_folder();
    eval { File::Path::make_path( "$state/withdrawn", { mode => oct 700 } ) };
    sysopen my $file, $mark, O_WRONLY | O_CREAT | O_NOFOLLOW, oct 600 or return;
    close $file;
    utime undef, undef, $mark;
    _wake_monitor($state);
    return;
}

# The answer has arrived: until now the grid job was held back, as GRAM might have been told that it failed.
sub _acknowledge {
    my ($self) = @_;
    my $mark = $self->_find_mark() or return;
    unlink $mark and _wake_monitor( _find_state_folder() );
    return;
}

# The mark of a request, a file; from the time of that file on the request counts as failed. undef: it has no usable name.
sub _find_mark {
    my ($self) = @_;
    my $uniqid = $self->{JobDescription}->uniqid();
    return if !defined $uniqid || $uniqid !~ /\A[A-Za-z0-9][A-Za-z0-9.]{0,199}\z/;
    return _find_state_folder() . "/withdrawn/$uniqid";
}

# The program's answer; undef if there is none, or an incomplete one.
sub _ask_program {
    my ( $self, $command ) = @_;
    local $SIG{PIPE} = 'IGNORE';
    local $SIG{CHLD} = 'DEFAULT';
    if ( !%program ) {
        %program = _start_program() or return;
    }
    my $is_sent = print { $program{to} } "$command ", $self->_render_question(), "\n";
    my $answer = $is_sent ? _read_lines( $program{from} ) : undef;
    if ( !$answer ) {
        kill 'KILL', $program{pid};
        waitpid $program{pid}, 0;
        %program = ();
    }
    return $answer;
}

sub _start_program {
    pipe( my $for_child,  my $to_child ) or return;
    pipe( my $from_child, my $of_child ) or return;
    my $pid = fork;
    return if !defined $pid;
    if ( !$pid ) {
        _exec_program( fileno $for_child, fileno $of_child );
    }
    close $for_child;
    close $of_child;
    $to_child->autoflush(1);
    return ( pid => $pid, to => $to_child, from => $from_child );
}

# An empty line ends an answer, not the end of file, which leftover processes of the program could delay.
sub _read_lines {
    my ($stream) = @_;
    my @answer;
    while ( defined( my $line = readline $stream ) ) {
        return \@answer if $line eq "\n";
        my ($pair) = _read_line($line) or return;
        push @answer, $pair;
    }
    return;
}

sub _read_line {
    my ($line) = @_;
    my ( $key, $value ) = $line =~ /\A([A-Z0-9_]+):([^\n]*)\n\z/ or return;
    return $IS_KEY{$key} ? [ $key, $value ] : ();
}

sub _exec_program {
    my ( $stdin, $stdout ) = @_;
    my $state = _find_state_folder();
    my $login = getpwuid $<;
    # Not the proxy and contact of this job: they are in the description, and a monitor may live longer than the job.
    my @kept = grep { /\A(?:HOME|PATH|X509_CERT_DIR|GLOBUS_(?!GRAM_JOB_CONTACT)\w+)\z/ } keys %ENV;
    local %ENV = ( LANG => 'C.UTF-8', LOGNAME => $login, USER => $login, map { $_ => $ENV{$_} } @kept );
    @SIG{ 'PIPE', 'CHLD', 'INT', 'TERM', 'HUP' } = ('DEFAULT') x 5;    ## no critic (RequireLocalizedPunctuationVars)
    my $log = _open_log($state);
    # By number: reopening Perl's own handles would change the position in GRAM's input.
    POSIX::dup2( $stdin,     0 );
    POSIX::dup2( $stdout,    1 );
    POSIX::dup2( fileno $log, 2 ) if $log;
    chdir q{/};
    my @program = ( _setting('python'), '-P', _setting('launch'), 'samgrid-gram', '--state-dir', $state, 'serve' );
    { no warnings 'exec'; exec { $program[0] } @program }    ## no critic (ProhibitNoWarnings)
    syswrite STDERR, "$program[0] cannot be started: $!; \"samgrid gram install\" writes globus-samgrid.conf\n";
    return POSIX::_exit(127);
}

# The log of the account's GRAM calls; /dev/null if there is no state folder.
sub _open_log {
    my ($state) = @_;
    my $log;
    sysopen( $log, "$state/gram.log", O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, oct 600 ) and return $log;
    sysopen( $log, '/dev/null', O_WRONLY ) and return $log;
    return;
}

sub _write_log {
    my ( $self, $state, $command, $answer, $started ) = @_;
    my $now         = Time::HiRes::time();
    my $description = $self->{JobDescription};
    my @words = ( $ENV{GLOBUS_GRAM_JOB_CONTACT}, scalar $description->uniqid(), scalar $description->jobid() );
    for my $word (@words) {
        $word = defined $word && $word ne q{} ? $word : q{-};
        $word =~ s/[^\x21-\x7e]/?/g;
    }
    my $text = join q{ }, map { "$_->[0]:$_->[1]" } @{$answer};
    my $line = sprintf "%s.%03dZ INFO %s contact=%s uniqid=%s job=%s seconds=%.4f answer=%s\n",
        POSIX::strftime( '%Y-%m-%dT%H:%M:%S', gmtime $now ), ( $now - int $now ) * 1000,
        $command, @words, $now - $started, $text ne q{} ? $text : 'no change';
    my $log = _open_log($state) or return;
    syswrite $log, $line;
    close $log;
    return;
}

# Each byte is one character, so that all bytes arrive unchanged.
sub _render_question {
    my ($self) = @_;
    my $description = $self->{JobDescription};
    my @names       = grep { ref $description->{$_} eq 'ARRAY' } keys %{$description};
    my @variables   = grep { defined $ENV{$_} } qw(X509_USER_PROXY GLOBUS_GRAM_JOB_CONTACT);
    return sprintf '{"description":{%s},"environment":{%s}}',
        join( q{,}, map { _render_json($_) . q{:} . _render_json( $description->{$_} ) } @names ),
        join q{,}, '"SAMGRID_ACKNOWLEDGES":"yes"', map { _render_json($_) . q{:} . _render_json( $ENV{$_} ) } @variables;
}

sub _render_json {
    my ($value) = @_;
    if ( ref $value eq 'ARRAY' ) {
        return '[' . join( q{,}, map { _render_json($_) } @{$value} ) . ']';
    }
    my $word = defined $value ? "$value" : q{};
    utf8::encode($word) if $word =~ /[^\x00-\xff]/;
    $word =~ s/([^\x20-\x7e]|["\\])/sprintf '\\u%04x', ord $1/ge;
    return qq{"$word"};
}

# The published answer of a grid job; undef if there is none.
sub _read_file {
    my ($path) = @_;
    sysopen my $file, $path, O_RDONLY | O_NOFOLLOW or return;
    my $size = sysread $file, my $text, 65_536;
    close $file;
    return if !$size;
    my @lines  = split /^/m, $text;
    my @answer = map { _read_line($_) } @lines;
    return @answer == @lines ? \@answer : undef;
}

sub _is_final {
    my ($answer) = @_;
    return scalar grep { $_->[0] eq 'JOB_STATE' && $IS_FINAL{ $_->[1] } } @{$answer};
}

# Connecting wakes the monitor; false if no monitor listens.
sub _wake_monitor {
    my ($state) = @_;
    # Through the folder's descriptor, because a socket's path has at most 107 bytes.
    sysopen my $folder, $state, O_RDONLY | O_DIRECTORY or return 0;
    socket my $monitor, $PF_UNIX, $SOCK_STREAM, 0 or return 0;
    fcntl $monitor, F_SETFL, O_NONBLOCK or return 0;
    my $place = sprintf '/proc/self/fd/%d/monitor.sock', fileno $folder;
    # EAGAIN: so many others connect that it will wake up.
    my $is_there = connect( $monitor, pack 'S a108', $PF_UNIX, $place ) || $!{EAGAIN};
    close $monitor;
    close $folder;
    return $is_there;
}

sub _find_state_folder {
    my $state = _setting('state') || '$(HOME)/.local/state/samgrid';
    $state =~ s/\$[(]HOME[)]/$ENV{HOME} || ( getpwuid $< )[7]/ge;
    $state =~ s/\$[(]LOGNAME[)]/getpwuid $</ge;
    return $state;
}

# One key of the site's file, which "samgrid gram install" writes; empty if it is missing.
sub _setting {
    my ($key) = @_;
    my $configuration = Globus::Core::Config->new('${sysconfdir}/globus/globus-samgrid.conf') or return q{};
    my $value = $configuration->get_attribute($key);
    return defined $value ? $value : q{};
}

1;

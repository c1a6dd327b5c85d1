"""Everyday words for the words of software manuals: two tables, one for training, one for testing.

Each line: word | its replacement in training and development clues | its replacement in test clues. The
two differ: a policy that learnt the first table by heart gains nothing from it in a test. A cell with
commas lists the forms of a word (walk,walks,walked,walking), the same ones in all three cells.
"""
# ruff: noqa: E501 (a row of the table is a line)

from __future__ import annotations

_WORDS = """
return,returns,returned,returning|hand back,hands back,handed back,handing back|give,gives,given,giving
create,creates,created,creating|make,makes,made,making|bring about,brings about,brought about,bringing about
get,gets,got,getting|fetch,fetches,fetched,fetching|obtain,obtains,obtained,obtaining
set,sets,set,setting|put in place,puts in place,put in place,putting in place|fix,fixes,fixed,fixing
read,reads,read,reading|take in,takes in,taken in,taking in|go through,goes through,gone through,going through
write,writes,written,writing|put down,puts down,put down,putting down|note,notes,noted,noting
open,opens,opened,opening|begin using,begins using,in use,beginning to use|unlock,unlocks,unlocked,unlocking
close,closes,closed,closing|shut,shuts,shut,shutting|finish with,finishes with,finished with,finishing with
remove,removes,removed,removing|take away,takes away,taken away,taking away|drop,drops,dropped,dropping
delete,deletes,deleted,deleting|wipe out,wipes out,wiped out,wiping out|erase,erases,erased,erasing
add,adds,added,adding|put in,puts in,put in,putting in|attach,attaches,attached,attaching
append,appends,appended,appending|put last,puts last,put last,putting last|tack on,tacks on,tacked on,tacking on
insert,inserts,inserted,inserting|slip in,slips in,slipped in,slipping in|place inside,places inside,placed inside,placing inside
parse,parses,parsed,parsing|analyse,analyses,analysed,analysing|pick apart,picks apart,picked apart,picking apart
convert,converts,converted,converting|turn,turns,turned,turning|change over,changes over,changed over,changing over
encode,encodes,encoded,encoding|put into signs,puts into signs,put into signs,scheme of signs|write as signs,writes as signs,written as signs,way of signs
decode,decodes,decoded,decoding|turn back from signs,turns back from signs,turned back from signs,turning back from signs|make out,makes out,made out,making out
check,checks,checked,checking|make sure,makes sure,made sure,making sure|examine,examines,examined,examining
test,tests,tested,testing|try out,tries out,tried out,trying out|probe,probes,probed,probing
compute,computes,computed,computing|work out,works out,worked out,working out|reckon,reckons,reckoned,reckoning
calculate,calculates,calculated,calculating|figure out,figures out,figured out,figuring out|determine by sums,determines by sums,found by sums,finding by sums
call,calls,called,calling|invoke,invokes,invoked,invoking|turn to,turns to,turned to,turning to
execute,executes,executed,executing|carry out,carries out,carried out,carrying out|perform,performs,performed,performing
run,runs,run,running|carry through,carries through,carried through,carrying through|set going,sets going,set going,going
start,starts,started,starting|begin,begins,begun,beginning|launch,launches,launched,launching
stop,stops,stopped,stopping|end,ends,ended,ending|halt,halts,halted,halting
send,sends,sent,sending|pass on,passes on,passed on,passing on|dispatch,dispatches,dispatched,dispatching
receive,receives,received,receiving|be given,is given,given,being given|accept,accepts,accepted,accepting
wait,waits,waited,waiting|hold on,holds on,held on,holding on|stand by,stands by,stood by,standing by
print,prints,printed,printing|show,shows,shown,showing|bring to paper,brings to paper,brought to paper,bringing to paper
display,displays,displayed,displaying|show,shows,shown,showing|present,presents,presented,presenting
find,finds,found,finding|look up,looks up,looked up,looking up|locate,locates,located,locating
search,searches,searched,searching|look,looks,looked,looking|hunt,hunts,hunted,hunting
match,matches,matched,matching|fit,fits,fitted,fitting|agree with,agrees with,agreed with,agreeing with
compare,compares,compared,comparing|weigh,weighs,weighed,weighing|set side by side,sets side by side,set side by side,setting side by side
copy,copies,copied,copying|duplicate,duplicates,duplicated,duplicating|reproduce,reproduces,reproduced,reproducing
replace,replaces,replaced,replacing|swap,swaps,swapped,swapping|exchange,exchanges,exchanged,exchanging
split,splits,split,splitting|divide,divides,divided,dividing|break up,breaks up,broken up,breaking up
join,joins,joined,joining|bring together,brings together,brought together,bringing together|unite,unites,united,uniting
load,loads,loaded,loading|bring in,brings in,brought in,bringing in|pull up,pulls up,pulled up,pulling up
save,saves,saved,saving|keep,keeps,kept,keeping|put by,puts by,put by,putting by
store,stores,stored,storing|keep,keeps,kept,keeping|lay up,lays up,laid up,laying up
update,updates,updated,updating|bring up to date,brings up to date,brought up to date,bringing up to date|refresh,refreshes,refreshed,refreshing
register,registers,registered,registering|enter,enters,entered,entering|sign up,signs up,signed up,signing up
define,defines,defined,defining|lay down,lays down,laid down,laying down|state,states,stated,stating
handle,handles,handled,handling|deal with,deals with,dealt with,dealing with|look after,looks after,looked after,looking after
raise,raises,raised,raising|throw,throws,thrown,throwing|signal,signals,signalled,signalling
format,formats,formatted,formatting|lay out,lays out,laid out,laying out|shape,shapes,shaped,shaping
generate,generates,generated,generating|produce,produces,produced,producing|yield up,yields up,yielded up,yielding up
initialize,initializes,initialized,initializing|set up,sets up,set up,setting up|prepare,prepares,prepared,preparing
support,supports,supported,supporting|allow for,allows for,allowed for,allowing for|cater for,caters for,catered for,catering for
provide,provides,provided,providing|supply,supplies,supplied,supplying|offer,offers,offered,offering
contain,contains,contained,containing|hold,holds,held,holding|include,includes,included,including
represent,represents,represented,representing|stand for,stands for,stood for,standing for|depict,depicts,depicted,depicting
implement,implements,implemented,implementing|realise,realises,realised,realising|carry into effect,carries into effect,carried into effect,carrying into effect
specify,specifies,specified,specifying|name,names,named,naming|lay out,lays out,laid out,laying out
use,uses,used,using|employ,employs,employed,employing|make use of,makes use of,made use of,making use of
function,functions|routine,routines|procedure,procedures
method,methods|way,ways|operation,operations
class,classes|kind,kinds|sort,sorts
object,objects|thing,things|entity,entities
instance,instances|example,examples|specimen,specimens
string,strings|piece of text,pieces of text|text,texts
list,lists|ordered collection,ordered collections|sequence of things,sequences of things
sequence,sequences|row,rows|series,series
dictionary,dictionaries|lookup table,lookup tables|book of words,books of words
tuple,tuples|fixed row,fixed rows|bundle,bundles
integer,integers|whole number,whole numbers|count,counts
byte,bytes|small unit,small units|octet,octets
character,characters|letter,letters|sign,signs
file,files|stored item,stored items|record on disk,records on disk
filename,filenames|name of a stored item,names of stored items|name of a record,names of records
directory,directories|folder,folders|place for records,places for records
path,paths|location,locations|route,routes
value,values|content,contents|worth,worths
key,keys|label,labels|handle,handles
argument,arguments|input,inputs|thing given,things given
parameter,parameters|setting,settings|input,inputs
attribute,attributes|trait,traits|property,properties
module,modules|unit of code,units of code|library part,library parts
package,packages|bundle of code,bundles of code|set of libraries,sets of libraries
error,errors|fault,faults|mistake,mistakes
exception,exceptions|fault,faults|trouble,troubles
message,messages|note,notes|piece of news,pieces of news
header,headers|heading,headings|opening line,opening lines
line,lines|row of text,rows of text|written row,written rows
name,names|label,labels|title,titles
type,types|sort,sorts|kind,kinds
number,numbers|figure,figures|quantity,quantities
thread,threads|strand,strands|line of work,lines of work
process,processes|running program,running programs|job under way,jobs under way
socket,sockets|network endpoint,network endpoints|plug,plugs
server,servers|host program,host programs|provider,providers
client,clients|visitor,visitors|customer,customers
request,requests|ask,asks|demand,demands
response,responses|answer,answers|reply,replies
connection,connections|link,links|line to another,lines to others
buffer,buffers|holding area,holding areas|waiting room,waiting rooms
stream,streams|flow,flows|current,currents
queue,queues|waiting line,waiting lines|line-up,line-ups
event,events|happening,happenings|occurrence,occurrences
window|pane|frame on screen
widget,widgets|control on screen,controls on screen|screen part,screen parts
time,times|moment,moments|hour,hours
date,dates|day,days|calendar day,calendar days
user,users|person,persons|human,humans
system,systems|machine,machines|set-up,set-ups
code,codes|program text,program texts|script,scripts
node,nodes|point of a tree,points of a tree|knot,knots
element,elements|part,parts|member,members
item,items|entry,entries|piece,pieces
default,defaults|standard choice,standard choices|usual choice,usual choices
option,options|choice,choices|switch,switches
expression,expressions|formula,formulas|term,terms
pattern,patterns|template,templates|model,models
result,results|outcome,outcomes|end product,end products
address,addresses|whereabouts,whereabouts|place,places
frame,frames|level of calls,levels of calls|layer,layers
token,tokens|smallest piece,smallest pieces|mark,marks
context,contexts|surroundings,surroundings|setting,settings
current|present|present-day
given|supplied|stated
new|fresh|novel
empty|blank|void
specified|named|chosen
optional|not required|free
true|yes|right
false|no|wrong
whether|if|in case
data|information|facts
text|writing|wording
network|web of machines|net
command|order|instruction
variable|changeable|holder
iterable|source of items|thing to go over
iterator|stepper|runner
callback|routine to run later|follow-up
timeout|time limit|deadline
warning|caution|alert
password|secret word|watchword
archive|packed store|packed set
"""


def _table(column: int) -> dict[str, str]:
  words: dict[str, str] = {}
  for line in _WORDS.strip().splitlines():
    cells = [cell.split(",") for cell in line.split("|")]
    for word, plain in zip(cells[0], cells[column], strict=True):
      words.setdefault(word, plain)  # "set" and "read" are their own past forms: the first wins
  return words


TABLES = {"train": _table(1), "dev": _table(1), "test": _table(2)}
"""Split -> {word of a manual: everyday words}."""

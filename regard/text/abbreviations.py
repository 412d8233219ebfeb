"""Words that a full stop stands after without ending a sentence, and words that tell whether it does: plain data, language by language.

All lists hold for texts of every language at once, since nobody says which language a text is in. Words are separated by spaces and without
their last full stop; one that is written small here may have a capital in a text, and one with a capital has it always.
"""

from __future__ import annotations

# A name, a noun or more of the same sentence follows: the full stop never ends one.
GOES_ON = {
    "en": "mr mrs ms mx dr Prof prof Rev Hon Gen gen Col Capt Cmdr Lt Sgt Maj Adm Pres Gov Sen Rep messrs Mt Ft St Ste supt insp vs"
    " e.g i.e cf viz",
    "de": "hr hrn Fr frl dipl dipl.-ing dr.-ing Geb gest bzw z.b d.h u.a i.d.r o.ä s.o s.u vgl evtl ggf ggfs inkl exkl bspw sog u.u"
    " z.t z.zt zzgl abzgl verh einschl insb zw Mio Mrd Med med phil rer jur",
    "fr": "MM av apr Mme Mmes mlle mlles mgr m.m p.ex c.-à-d éd",
    "es": "sr sra srta dña d.ª Vd Ud Uds Vds p.ej lic Ing arq Gral tte excmo excma ilmo hno hna fdo EE sta sto",
    "pt": "sr.ª srª dr.ª drª dra profa profª eng exmo exma p.e",
    "it": "rag ing sig sig.ra sig.na sigg dott dott.ssa prof.ssa avv Geom mons ad.es p.es cosid spett egr gent",
    "nl": "dhr mevr Mej drs bijv d.w.z t.a.v m.b.t i.p.v m.a.w t.o.v resp incl excl zgn m.n",
    "hi": "डॉ डा प्रो श्री श्रीमती सुश्री कु पं मि स्व ई.पू उदा पु.सं कि मी किमी",
}

# A number follows: 'No. 5' goes on, 'I said no. Tom left.' does not.
BEFORE_NUMBER = {
    "en": "no nos p pp pg f ff fig figs art arts ch chap sec sect vol vols ed eq tab par c ca circa approx v jan feb mar apr jun"
    " jul aug sep sept oct nov dec ext room app apt §",
    "de": "nr nrn str s abb abs art kap bd tab z ca tel dez okt",
    "fr": "nº núm p pp chap vol art t env av fig",
    "es": "n nº núm núms pág págs art cap vol fig tel",
    "pt": "n nº núm pág págs art cap vol fig tel",
    "it": "n nn pag pagg art artt cap vol fig tab tel",
    "nl": "nr nrs blz hfst deel art afb tel",
    "hi": "नं सं पृ क्र अनु रु रू",
}

# They may end a sentence: they do where a capital or a number follows.
MAY_END = {
    "en": "etc a.m p.m jr inc ltd corp co plc llc ph.d m.d b.a m.a b.sc m.sc rd ave blvd",
    "de": "usw u.s.w u.ä u.v.m uvm v.chr n.chr",
    "fr": "etc av.j.-c apr.j.-c cie",
    "es": "etc a.c d.c ltda cía",
    "pt": "etc a.c d.c ltda cia",
    "it": "ecc a.c d.c",
    "nl": "enz e.d e.a",
    "hi": "आदि इत्यादि",
}

# What a sentence begins with so often that it does after an initial, an acronym or an ordinal too.
BEGINNERS = {
    "en": "a after although an and as at because before by but can could did do does for from had has have he her here his how i"
    " i'd i'll i'm i've if in is it it's its let let's maybe may my no not now of on one or our please she should since so"
    " some that the their then there these they this those to was we were what when where which while who why will with would"
    " yes yesterday you your today tomorrow everyone nobody",
    "de": "aber alle als am auch auf bei bitte da damit dann das dass dein deine dem den der deshalb die dies diese dieser dieses"
    " doch du ein eine einer er es für gestern hat haben heute hier ich ihr ihre im in ist ja jetzt kann kein können mein"
    " meine mit morgen nach nein nicht noch nun nur ob sein seine seit sie sind so trotzdem und uns unser viele von war waren"
    " warum was wegen weil wenn wer wie wir wird wo zu zum zur",
    "fr": "alors après au aussi aujourd'hui aujourd’hui avec c'est c’est ce ces cela cet cette comme comment dans demain depuis des"
    " donc du elle elles en et hier ici il ils j'ai j’ai je la le les leur leurs lorsque ma mais mes mon nos notre nous non on"
    " ont où oui par parce pas pour pourquoi puis qu'il quand que quel quelle qui sa sans ses si son sont sur ta tes ton tous"
    " tout très tu un une vous votre y",
    "es": "ahora al algunos allí antes aquel aquella aunque ayer como con cuando cuándo de del desde después dónde el él ella ellas"
    " ellos en entonces era es esa ese eso esta está este esto estoy están fue ha hay hoy la las le les lo los luego mañana me"
    " mi mis muchos más nada nadie no nos nosotros nunca para pero por porque pues qué quién se según ser si sí sin sobre solo"
    " su sus también tengo todo todos tu tú una unos ya yo",
    "pt": "agora ainda amanhã ao aos aquele aquela as assim até cada com depois do dos e ela elas ele eles em embora essa esse esta"
    " este estou eu foi há hoje isso isto já logo mas mesmo meu minha muito na nas no nos nossa nosso não nós num numa o onde"
    " ontem os ou para pela pelo porque qual quando quem se sem seu seus sim são sua suas também tem tenho tudo um uma você"
    " vocês",
    "it": "adesso al alla allora anche ancora c'è c’è che chi ci come con cosa così da dal dalla davvero degli dei del della delle"
    " di domani dopo dov'è dov’è dove dunque e ecco era esso fa gli ha ho i ieri il in infatti io la le lei lo loro lui ma mi"
    " mia mio nel nella nessuno noi non oggi ogni per perché però più poi prima qual quale quando quello questa questi questo"
    " qui se sei si sono sta su sul tra tu tua tuo tutti un una uno voi è",
    "nl": "aan al als bij daarna dan dat de deze die dit door dus een en er gisteren haar had heb hebben heeft het hier hij hoe hun"
    " ik in is je jij jullie kan maar met mijn misschien morgen na naar nee niemand niet nog nu of om omdat ons onze op over"
    " te toen tot uit van vandaag veel voor waar waarom wanneer wat we wie wij wil ze zij zijn zo zou",
}

# After them a number with a full stop is an ordinal: 'am 3. Mai', 'der 2. Weltkrieg'.
BEFORE_ORDINAL = {
    "de": "am der die das den dem des im vom zum zur seit bis ab beim jeder jede jedes jeden unser unsere unserem ihr ihre sein"
    " seine seinem seinen mein meine meinen ein eine einen einem einer dieser diese und oder auf vor nach mit ins etwa montag"
    " dienstag mittwoch donnerstag freitag samstag sonntag",
}

# Before them it is one too: '1. Januar', '19. Jahrhundert'.
AFTER_ORDINAL = {
    "de": "januar jänner februar märz april mai juni juli august september oktober november dezember jan feb mrz apr jun jul aug"
    " sep sept okt nov dez jahrhundert jahrhunderts weltkrieg weltkriegs klasse stock stockwerk etage platz kapitel mal"
    " auflage geburtstag tag jahr semester runde",
}

# After a quotation they belong to its sentence: '"Where is it?" Tom asked.'
SAYS = {
    "en": "said asked replied answered cried shouted whispered exclaimed yelled added explained thought wondered muttered screamed",
    "de": "sagte fragte rief antwortete schrie flüsterte meinte erwiderte dachte erklärte",
    "fr": "dit demanda répondit cria murmura s'écria s’écria déclara",
    "es": "dijo preguntó respondió gritó exclamó contestó susurró pensó",
    "pt": "disse perguntou respondeu gritou exclamou sussurrou pensou",
    "it": "disse chiese domandò rispose gridò esclamò sussurrò pensò",
    "nl": "zei vroeg antwoordde riep fluisterde dacht schreeuwde",
    "hi": "कहा पूछा बोला बोली चिल्लाया",
}

# Names that end in a mark of their own.
NAMES = "yahoo! jeopardy! wham! guess? rtl!"

# How Hindi spells the letters of the Latin alphabet, as in initials and acronyms.
LETTERS = "ए बी सी डी ई एफ जी एच आई जे के एल एम एन ओ पी क्यू आर एस टी यू वी डब्ल्यू डब्लू एक्स वाई ज़ेड जेड"
